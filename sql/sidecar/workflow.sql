-- One row a workflow: what was asked, where it stands, and what the operator wants of it. Its tables: workflow_table.
--   cancel_requested  1; 2: of a feed, even where its broker cannot be told
CREATE TABLE IF NOT EXISTS workflow (
  id                 VARCHAR(48)   CHARACTER SET ascii COLLATE ascii_bin  NOT NULL,
  kind               VARCHAR(24)   CHARACTER SET ascii                    NOT NULL,
  protocol           INT                                                  NOT NULL,
  spec               LONGTEXT      CHARACTER SET utf8mb4                  NOT NULL,
  phase              VARCHAR(16)   CHARACTER SET ascii                    NOT NULL,
  paused             TINYINT                                              NOT NULL DEFAULT 0,
  cancel_requested   TINYINT                                              NOT NULL DEFAULT 0,
  reason             TEXT          CHARACTER SET utf8mb4                  NULL,
  server_identity    VARCHAR(64)   CHARACTER SET ascii                    NULL,
  start_position     MEDIUMTEXT    CHARACTER SET utf8mb4                  NULL,
  created_at         DATETIME(6)                                          NOT NULL,
  updated_at         DATETIME(6)                                          NOT NULL,
  ended_at           DATETIME(6)                                          NULL,
  PRIMARY KEY (id)
) ENGINE=InnoDB;
