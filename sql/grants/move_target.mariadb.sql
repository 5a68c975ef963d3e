-- Least privilege for the target of tables that move (move-tables), on MariaDB 10.5 and newer.
-- Replace <user>, <host>, <password> and <schema> (the schema into which they move), then run as an administrator.
-- In a schema-level grant "_" stands for any one character; write it as "\_" if that grants too much on your server.
-- For the way back the user has to create or drop a trigger here, too: see sql/grants/move_source.mariadb.sql.

CREATE USER '<user>'@'<host>' IDENTIFIED BY '<password>';

-- The schema into which the tables move.
--   SELECT                   read rows, keys and checksums; SHOW CREATE TABLE
--   INSERT, DELETE           write the new tables (REPLACE is both); RENAME asks for INSERT, too
--   CREATE, ALTER, DROP      make them, give them their names at the switch, remove them again
--   CREATE TEMPORARY TABLES  try a definition without leaving a trace
--   LOCK TABLES              the way back: no write while the triggers are made
--   TRIGGER                  see triggers, which are hidden without it; make those that deny writes on the way back
GRANT SELECT, INSERT, DELETE, CREATE, ALTER, DROP, CREATE TEMPORARY TABLES, LOCK TABLES, TRIGGER
  ON `<schema>`.* TO '<user>'@'<host>';

-- Our own schema: leases, ledger, checkpoints.
--   CREATE       the schema itself and its tables
--   ALTER, DROP  bring the tables to a new version; remove those of one workflow
--   LOCK TABLES  write markers while a table is locked
GRANT SELECT, INSERT, UPDATE, DELETE, CREATE, ALTER, DROP, LOCK TABLES
  ON `_vreplication`.* TO '<user>'@'<host>';

-- REPLICATION SLAVE         read the binary log
-- REPLICATION MASTER ADMIN  SHOW SLAVE HOSTS: our server id must clash with no replica's
-- BINLOG MONITOR            SHOW MASTER STATUS and SHOW BINARY LOGS: where to start, whether the files are still there
-- SLAVE MONITOR             SHOW SLAVE STATUS: whether this server is itself a replica
-- PROCESS                   information_schema.innodb_trx and innodb_sys_tables, the process list: name what blocks
GRANT REPLICATION SLAVE, BINLOG MONITOR, REPLICATION MASTER ADMIN, SLAVE MONITOR, PROCESS
  ON *.* TO '<user>'@'<host>';
