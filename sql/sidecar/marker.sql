-- Rows that are written to be seen in the log: behind a marker everything committed before it has been read.
CREATE TABLE IF NOT EXISTS marker (
  workflow    VARCHAR(48)  CHARACTER SET ascii COLLATE ascii_bin  NOT NULL,
  id          CHAR(16)     CHARACTER SET ascii                    NOT NULL,
  kind        VARCHAR(16)  CHARACTER SET ascii                    NOT NULL,
  created_at  DATETIME(6)                                         NOT NULL,
  PRIMARY KEY (workflow, id)
) ENGINE=InnoDB;
