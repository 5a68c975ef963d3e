-- Written by the applier when everything before the marker is flushed to the target.
CREATE TABLE IF NOT EXISTS marker_applied (
  workflow    VARCHAR(48)  CHARACTER SET ascii COLLATE ascii_bin  NOT NULL,
  id          CHAR(16)     CHARACTER SET ascii                    NOT NULL,
  branches    LONGTEXT     CHARACTER SET ascii                    NOT NULL,
  is_holding  TINYINT                                             NOT NULL,
  applied_at  DATETIME(6)                                         NOT NULL,
  PRIMARY KEY (workflow, id)
) ENGINE=InnoDB;
