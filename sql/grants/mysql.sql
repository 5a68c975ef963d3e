-- Least privilege for vreplication on MySQL 8.0 and newer.
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
--   --foreign-keys rebuild needs REFERENCES as well, here and in the schemas of the tables that foreign keys tie to it
GRANT SELECT, INSERT, DELETE, CREATE, ALTER, DROP, CREATE TEMPORARY TABLES, LOCK TABLES, TRIGGER
  ON `<schema>`.* TO '<user>'@'<host>';

-- Our own schema: leases, ledger, checkpoints.
--   CREATE       the schema itself and its tables
--   ALTER, DROP  bring the tables to a new version; remove those of one workflow
--   LOCK TABLES  write the marker while the table is locked for cut-over
GRANT SELECT, INSERT, UPDATE, DELETE, CREATE, ALTER, DROP, LOCK TABLES
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

-- Only for --force-cutover-after: end sessions that block the cut-over (take the dashes off).
-- GRANT CONNECTION_ADMIN ON *.* TO '<user>'@'<host>';
