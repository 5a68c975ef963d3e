-- What others write to the server: transactions a second, as catch-up sees them in the log.
CREATE TABLE IF NOT EXISTS traffic (
  workflow           VARCHAR(48)  CHARACTER SET ascii COLLATE ascii_bin  NOT NULL,
  others_per_second  DOUBLE                                              NOT NULL,
  written_at         DATETIME(6)                                         NOT NULL,
  PRIMARY KEY (workflow)
) ENGINE=InnoDB;
