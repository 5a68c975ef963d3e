-- Least privilege for the source of a change feed (changefeed), on MariaDB 10.5 and newer.
-- Replace <user>, <host>, <password> and <schema> (the schema of the tables), then run as an administrator.
-- In a schema-level grant "_" stands for any one character; write it as "\_" if that grants too much on your server.
-- Where tables of several schemas are followed, grant SELECT on each of them.

CREATE USER '<user>'@'<host>' IDENTIFIED BY '<password>';

-- The schema of the tables that are followed.
--   SELECT  SHOW CREATE TABLE: unique keys and types that the log does not tell; no row is read
GRANT SELECT ON `<schema>`.* TO '<user>'@'<host>';

-- Our own schema: the lease, what was asked for, how it goes. Nothing here says where the feed goes on.
--   CREATE, ALTER  the schema itself and its tables, and bring them to a new version
GRANT CREATE, ALTER, SELECT, INSERT, UPDATE, DELETE
  ON `_vreplication`.* TO '<user>'@'<host>';

-- REPLICATION SLAVE         read the binary log
-- REPLICATION MASTER ADMIN  SHOW SLAVE HOSTS: our server id must clash with no replica's
-- BINLOG MONITOR            SHOW MASTER STATUS and SHOW BINARY LOGS: where to start, whether the files are still there
-- SLAVE MONITOR             SHOW SLAVE STATUS: whether this server is itself a replica
-- PROCESS                   the process list: whether who held the lease is still there
GRANT REPLICATION SLAVE, BINLOG MONITOR, REPLICATION MASTER ADMIN, SLAVE MONITOR, PROCESS
  ON *.* TO '<user>'@'<host>';
