-- What is of a table, and not of the workflow, gets a row a table.
CREATE TABLE _vreplication.workflow_table (
  workflow           VARCHAR(48)   CHARACTER SET ascii COLLATE ascii_bin  NOT NULL,
  number             INT                                                  NOT NULL,
  source_schema      VARCHAR(64)   CHARACTER SET utf8mb4                  NOT NULL,
  source_table       VARCHAR(64)   CHARACTER SET utf8mb4                  NOT NULL,
  shadow_table       VARCHAR(64)   CHARACTER SET utf8mb4                  NOT NULL,
  retired_table      VARCHAR(64)   CHARACTER SET utf8mb4                  NOT NULL,
  copy_path          VARCHAR(8)    CHARACTER SET ascii                    NOT NULL,
  source_identity    VARCHAR(255)  CHARACTER SET ascii                    NULL,
  shadow_identity    VARCHAR(255)  CHARACTER SET ascii                    NULL,
  source_definition  CHAR(64)      CHARACTER SET ascii                    NULL,
  is_cut             TINYINT                                              NOT NULL DEFAULT 0,
  rows_total         BIGINT                                               NULL,
  PRIMARY KEY (workflow, number),
  KEY by_table (source_schema, source_table)
) ENGINE=InnoDB;

INSERT IGNORE INTO _vreplication.workflow_table
SELECT id, 0, source_schema, source_table, shadow_table, retired_table, copy_path, source_identity, shadow_identity,
       source_definition, is_cut, rows_total
FROM _vreplication.workflow;

ALTER TABLE _vreplication.workflow
  DROP KEY by_table, DROP COLUMN source_schema, DROP COLUMN source_table, DROP COLUMN shadow_table,
  DROP COLUMN retired_table, DROP COLUMN copy_path, DROP COLUMN source_identity, DROP COLUMN shadow_identity,
  DROP COLUMN source_definition, DROP COLUMN is_cut, DROP COLUMN rows_total;
