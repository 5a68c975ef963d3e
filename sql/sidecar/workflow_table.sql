-- One row a table that a workflow changes or moves, numbered from 0.
CREATE TABLE IF NOT EXISTS workflow_table (
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
