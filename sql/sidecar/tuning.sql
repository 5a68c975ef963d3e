-- What an operator asks of a running copy; NULL: as it began. What can be had, the driver notes: Spark's slots, and
-- whether copying locks the counter of an AUTO_INCREMENT table.
CREATE TABLE IF NOT EXISTS tuning (
  workflow          VARCHAR(48)  CHARACTER SET ascii COLLATE ascii_bin  NOT NULL,
  copy_parallelism  INT                                                 NULL,
  chunk_millis      INT                                                 NULL,
  slots             INT                                                 NULL,
  holds_counter     TINYINT                                             NOT NULL DEFAULT 0,
  PRIMARY KEY (workflow)
) ENGINE=InnoDB;
