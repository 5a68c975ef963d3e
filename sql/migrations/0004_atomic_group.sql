-- Tables of one command may be switched in one statement. A sidecar from before groups has none, and gets today's table.
CREATE TABLE IF NOT EXISTS _vreplication.workflow_group (
  id                VARCHAR(48)   CHARACTER SET ascii COLLATE ascii_bin  NOT NULL,
  tables            LONGTEXT      CHARACTER SET utf8mb4                  NOT NULL,
  at_once           INT                                                  NOT NULL,
  paused            TINYINT                                              NOT NULL DEFAULT 0,
  cancel_requested  TINYINT                                              NOT NULL DEFAULT 0,
  released_by       VARCHAR(255)  CHARACTER SET utf8mb4                  NULL,
  created_at        DATETIME(6)                                          NOT NULL,
  PRIMARY KEY (id)
) ENGINE=InnoDB;

ALTER TABLE _vreplication.workflow_group ADD COLUMN atomic TINYINT NOT NULL DEFAULT 0 AFTER at_once;
