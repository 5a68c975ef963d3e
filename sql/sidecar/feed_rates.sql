-- What a feed has sent into each partition over time, beside its points in history: `slot` is theirs, and they are put
-- together alike. rates: JSON, rows a second of the partitions from 0 on, of the first 64.
CREATE TABLE IF NOT EXISTS feed_rates (
  workflow  VARCHAR(48)  CHARACTER SET ascii COLLATE ascii_bin  NOT NULL,
  slot      BIGINT                                              NOT NULL,
  rates     TEXT         CHARACTER SET ascii                    NOT NULL,
  PRIMARY KEY (workflow, slot)
) ENGINE=InnoDB;
