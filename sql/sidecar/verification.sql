-- What the last verification of a workflow found. started_at: when the server was started that it was made on.
CREATE TABLE IF NOT EXISTS verification (
  workflow       VARCHAR(48)  CHARACTER SET ascii COLLATE ascii_bin  NOT NULL,
  verdict        VARCHAR(8)   CHARACTER SET ascii                    NOT NULL,
  rows_compared  BIGINT                                              NOT NULL,
  mismatches     BIGINT                                              NOT NULL,
  repaired       BIGINT                                              NOT NULL,
  hot_keys       LONGTEXT     CHARACTER SET utf8mb4                  NOT NULL,
  details        LONGTEXT     CHARACTER SET utf8mb4                  NOT NULL,
  started_at     DATETIME(6)                                         NOT NULL,
  finished_at    DATETIME(6)                                         NOT NULL,
  PRIMARY KEY (workflow)
) ENGINE=InnoDB;
