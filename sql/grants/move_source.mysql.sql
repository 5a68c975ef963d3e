-- Least privilege for the source of tables that move (move-tables), on MySQL 8.0 and newer.
-- Replace <user>, <host>, <password> and <schema> (the schema of the tables), then run as an administrator.
-- In a schema-level grant "_" stands for any one character; write it as "\_" if that grants too much on your server.
-- While the server writes a binary log, MySQL lets only SUPER create a trigger: SET GLOBAL log_bin_trust_function_creators=ON
-- until the workflow has ended, rather than granting that.

CREATE USER '<user>'@'<host>' IDENTIFIED BY '<password>';

-- The schema of the tables that move.
--   SELECT               read rows, keys and checksums; SHOW CREATE TABLE
--   LOCK TABLES          the switch: no write while the triggers are made
--   TRIGGER              see triggers, which are hidden without it; make those that deny writes, and drop them
--   INSERT, DELETE       after the switch: keep the tables level for the way back (REPLACE is both)
--   ALTER, DROP, CREATE  when the move is completed: rename the old tables away (which asks for INSERT, too), or drop them
GRANT SELECT, LOCK TABLES, TRIGGER, INSERT, DELETE, ALTER, DROP, CREATE
  ON `<schema>`.* TO '<user>'@'<host>';

-- Our own schema: one table of markers, which come back through the binary log.
--   CREATE                  the schema itself and its table
--   SELECT, INSERT, UPDATE  write and read markers, with a lock on a row
--   DELETE                  take them away again
--   DROP                    a table that is made and dropped before a switch back, so that the server flushes its log
GRANT CREATE, DROP, SELECT, INSERT, UPDATE, DELETE
  ON `_vreplication`.* TO '<user>'@'<host>';

-- REPLICATION SLAVE        read the binary log; SHOW REPLICAS: our server id must clash with no replica's
-- REPLICATION CLIENT       SHOW BINARY LOG STATUS and SHOW BINARY LOGS: where to start, whether the files are still there
-- PROCESS                  information_schema.innodb_trx and innodb_tables, the process list: name what blocks
-- XA_RECOVER_ADMIN         XA RECOVER: prepared transactions that are in no stream yet
-- SESSION_VARIABLES_ADMIN  SET SESSION max_error_count: all warnings of a chunk are read, not only the first 1,024
GRANT REPLICATION SLAVE, REPLICATION CLIENT, PROCESS, XA_RECOVER_ADMIN, SESSION_VARIABLES_ADMIN
  ON *.* TO '<user>'@'<host>';

-- Who holds or waits for a metadata lock, and which connection that is.
GRANT SELECT ON performance_schema.metadata_locks TO '<user>'@'<host>';
GRANT SELECT ON performance_schema.threads TO '<user>'@'<host>';
