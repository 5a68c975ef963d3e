-- Least privilege for vreplication on MariaDB 10.5 and newer.
-- Replace <user>, <host>, <password> and <schema> (the schema of the tables to be changed), then run as an administrator.
-- In a schema-level grant "_" stands for any one character; write it as "\_" if that grants too much on your server.

CREATE USER '<user>'@'<host>' IDENTIFIED BY '<password>';

-- The schema of the tables to be changed.
--   SELECT                   read rows, keys and checksums; SHOW CREATE TABLE
--   INSERT, DELETE           write the shadow table (REPLACE is both); ALTER asks for INSERT, too
--   CREATE, ALTER, DROP      make, alter, rename and remove the shadow, sentry and retired tables
--   CREATE TEMPORARY TABLES  try the ALTER without leaving a trace
--   LOCK TABLES              the cut-over
--   TRIGGER                  see triggers: without it they are hidden, not absent, and one would pass unnoticed;
--                            make them on the new table (--triggers preserve)
--   --foreign-keys rebuild needs GRANT RELOAD ON *.* as well, to hold off writers of the tables that foreign keys tie to it
GRANT SELECT, INSERT, DELETE, CREATE, ALTER, DROP, CREATE TEMPORARY TABLES, LOCK TABLES, TRIGGER
  ON `<schema>`.* TO '<user>'@'<host>';

-- Our own schema: leases, ledger, checkpoints.
--   CREATE       the schema itself and its tables
--   ALTER, DROP  bring the tables to a new version; remove those of one workflow
--   LOCK TABLES  write the marker while the table is locked for cut-over
GRANT SELECT, INSERT, UPDATE, DELETE, CREATE, ALTER, DROP, LOCK TABLES
  ON `_vreplication`.* TO '<user>'@'<host>';

-- REPLICATION SLAVE         read the binary log
-- REPLICATION MASTER ADMIN  SHOW SLAVE HOSTS: our server id must clash with no replica's
-- BINLOG MONITOR            SHOW MASTER STATUS and SHOW BINARY LOGS: where to start, whether the files are still there
-- SLAVE MONITOR             SHOW SLAVE STATUS: whether this server is itself a replica
-- PROCESS                   information_schema.innodb_trx and innodb_sys_tables, the process list: name what blocks
GRANT REPLICATION SLAVE, BINLOG MONITOR, REPLICATION MASTER ADMIN, SLAVE MONITOR, PROCESS
  ON *.* TO '<user>'@'<host>';

-- Statistics that somebody has had collected (ANALYZE … PERSISTENT), to collect them for the new table. Without these
-- grants a table is changed all the same, and they stay with the retired table.
GRANT SELECT ON mysql.table_stats TO '<user>'@'<host>';
GRANT SELECT ON mysql.column_stats TO '<user>'@'<host>';
GRANT SELECT ON mysql.index_stats TO '<user>'@'<host>';

-- Only for --force-cutover-after: end sessions that block the cut-over (take the dashes off).
-- GRANT CONNECTION ADMIN ON *.* TO '<user>'@'<host>';
