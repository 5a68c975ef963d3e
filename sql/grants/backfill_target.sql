-- Least privilege for the target of a backfill, on MariaDB and on MySQL.
-- Replace <user>, <host>, <password> and <schema> (the schema of the tables), then run as an administrator.
-- In a schema-level grant "_" stands for any one character; write it as "\_" if that grants too much on your server.

CREATE USER '<user>'@'<host>' IDENTIFIED BY '<password>';

-- SELECT          compare with the source
-- INSERT, UPDATE  INSERT … ON DUPLICATE KEY UPDATE is both
-- DELETE          jobs with `mirror: true` remove rows that are gone from the source
GRANT SELECT, INSERT, UPDATE, DELETE ON `<schema>`.* TO '<user>'@'<host>';
