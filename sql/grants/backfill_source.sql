-- Least privilege for the source of a backfill, on MariaDB and on MySQL: it is only read.
-- Replace <user>, <host>, <password> and <schema> (the schema of the tables), then run as an administrator.
-- In a schema-level grant "_" stands for any one character; write it as "\_" if that grants too much on your server.

CREATE USER '<user>'@'<host>' IDENTIFIED BY '<password>';

-- SELECT  read rows and checksums; SHOW CREATE TABLE
GRANT SELECT ON `<schema>`.* TO '<user>'@'<host>';

-- Optional: PROCESS  wait for transactions that are still open behind the end of an interval (docs/backfill.md)
-- GRANT PROCESS ON *.* TO '<user>'@'<host>';
