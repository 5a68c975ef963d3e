-- How much longer a workflow will take; its driver rewrites the row each second. eta_of: until what (complete, waiting).
CREATE TABLE IF NOT EXISTS forecast (
  workflow          VARCHAR(48)   CHARACTER SET ascii COLLATE ascii_bin  NOT NULL,
  eta_seconds       DOUBLE                                               NULL,
  eta_low_seconds   DOUBLE                                               NULL,
  eta_high_seconds  DOUBLE                                               NULL,
  eta_of            VARCHAR(16)   CHARACTER SET ascii                    NOT NULL,
  eta_reason        VARCHAR(255)  CHARACTER SET utf8mb4                  NULL,
  written_at        DATETIME(6)                                          NOT NULL,
  PRIMARY KEY (workflow)
) ENGINE=InnoDB;
