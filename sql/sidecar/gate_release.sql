-- The operator's act that opens the cut-over gate; remembered when it comes early.
CREATE TABLE IF NOT EXISTS gate_release (
  workflow     VARCHAR(48)   CHARACTER SET ascii COLLATE ascii_bin  NOT NULL,
  released_by  VARCHAR(255)  CHARACTER SET utf8mb4                  NOT NULL,
  released_at  DATETIME(6)                                          NOT NULL,
  PRIMARY KEY (workflow)
) ENGINE=InnoDB;
