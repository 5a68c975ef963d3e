-- The chunk ledger: one row a chunk. state goes open -> landed -> matched; a new attempt keeps the bounds.
CREATE TABLE IF NOT EXISTS chunk (
  workflow     VARCHAR(48)  CHARACTER SET ascii COLLATE ascii_bin  NOT NULL,
  split        INT                                                 NOT NULL,
  ordinal      INT                                                 NOT NULL,
  attempt      BIGINT                                              NOT NULL,
  state        VARCHAR(8)   CHARACTER SET ascii                    NOT NULL,
  lower_bound  LONGTEXT     CHARACTER SET utf8mb4                  NOT NULL,
  upper_bound  LONGTEXT     CHARACTER SET utf8mb4                  NOT NULL,
  has_lower    TINYINT                                             NOT NULL,
  rows_read    BIGINT                                              NOT NULL DEFAULT 0,
  rows_copied  BIGINT                                              NOT NULL DEFAULT 0,
  swallowed    BIGINT                                              NOT NULL DEFAULT 0,
  millis       INT                                                 NOT NULL DEFAULT 0,
  opened_at    DATETIME(6)                                         NOT NULL,
  landed_at    DATETIME(6)                                         NULL,
  matched_at   DATETIME(6)                                         NULL,
  PRIMARY KEY (workflow, split, ordinal),
  KEY by_state (workflow, state)
) ENGINE=InnoDB;
