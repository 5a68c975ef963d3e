-- Where a restart goes on reading the log; saved with the rows that it describes.
CREATE TABLE IF NOT EXISTS checkpoint (
  workflow        VARCHAR(48)   CHARACTER SET ascii COLLATE ascii_bin  NOT NULL,
  position        MEDIUMTEXT    CHARACTER SET utf8mb4                  NOT NULL,
  batch           BIGINT                                               NOT NULL,
  events_applied  BIGINT                                               NOT NULL,
  saved_at        DATETIME(6)                                          NOT NULL,
  PRIMARY KEY (workflow)
) ENGINE=InnoDB;
