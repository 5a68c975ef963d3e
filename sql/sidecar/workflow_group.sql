-- Several tables changed by one command, one row a command. Each table is a workflow of its own: id.1, id.2, … in the
-- order of `tables`, a JSON list of what was asked for each. atomic: they are switched in one statement. The other columns
-- are what the operator wants of all.
CREATE TABLE IF NOT EXISTS workflow_group (
  id                VARCHAR(48)   CHARACTER SET ascii COLLATE ascii_bin  NOT NULL,
  tables            LONGTEXT      CHARACTER SET utf8mb4                  NOT NULL,
  at_once           INT                                                  NOT NULL,
  atomic            TINYINT                                              NOT NULL DEFAULT 0,
  paused            TINYINT                                              NOT NULL DEFAULT 0,
  cancel_requested  TINYINT                                              NOT NULL DEFAULT 0,
  released_by       VARCHAR(255)  CHARACTER SET utf8mb4                  NULL,
  created_at        DATETIME(6)                                          NOT NULL,
  PRIMARY KEY (id)
) ENGINE=InnoDB;
