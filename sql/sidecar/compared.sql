-- Chunks that were compared beside the copy. collection: the first round of the keys collected since (0: they differed).
CREATE TABLE IF NOT EXISTS compared (
  workflow    VARCHAR(48)  CHARACTER SET ascii COLLATE ascii_bin  NOT NULL,
  split       INT                                                 NOT NULL,
  ordinal     INT                                                 NOT NULL,
  collection  BIGINT                                              NOT NULL,
  rows_seen   BIGINT                                              NOT NULL DEFAULT 0,
  noted_at    DATETIME(6)                                         NOT NULL,
  PRIMARY KEY (workflow, split, ordinal)
) ENGINE=InnoDB;
