-- Least privilege for the target of a change feed's consumer (consume), on MySQL 8.0 and newer.
-- Replace <user>, <host>, <password> and <schema> (the schema of the tables), then run as an administrator.
-- In a schema-level grant "_" stands for any one character; write it as "\_" if that grants too much on your server.
-- Where tables of several schemas are written, grant the same on each of them.

CREATE USER '<user>'@'<host>' IDENTIFIED BY '<password>';

-- The schema of the tables that are written.
--   SELECT                      columns and keys of the tables
--   INSERT, DELETE              write rows (REPLACE is both)
--   CREATE, ALTER, DROP, INDEX  run the DDL that stands in the feed; leave them out where none is to be run
--   REFERENCES                  of that, what has foreign keys
--   CREATE TEMPORARY TABLES     tell whether a DDL that is refused has been done already
GRANT SELECT, INSERT, DELETE, CREATE, ALTER, DROP, INDEX, REFERENCES, CREATE TEMPORARY TABLES
  ON `<schema>`.* TO '<user>'@'<host>';

-- Our own schema: where each consumer stands.
--   CREATE, ALTER  the schema itself and its tables, and bring them to a new version
GRANT CREATE, ALTER, SELECT, INSERT, UPDATE, DELETE
  ON `_vreplication`.* TO '<user>'@'<host>';

-- PROCESS  the process list: whether a DDL of a consumer that is gone still runs
GRANT PROCESS ON *.* TO '<user>'@'<host>';
