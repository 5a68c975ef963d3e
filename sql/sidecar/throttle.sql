-- How hard copying and verifying may work now: written by the driver, four times a second, and each time that is the
-- probe that it steers by. base_micros: what a probe took before we worked.
CREATE TABLE IF NOT EXISTS throttle (
  workflow        VARCHAR(48)  CHARACTER SET ascii COLLATE ascii_bin  NOT NULL,
  effort          DOUBLE                                              NOT NULL,
  tasks           INT                                                 NOT NULL,
  chunk_millis    INT                                                 NOT NULL,
  base_micros     BIGINT                                              NULL,
  latency_micros  BIGINT                                              NULL,
  written_at      DATETIME(6)                                         NOT NULL,
  PRIMARY KEY (workflow)
) ENGINE=InnoDB;
