-- Beside the checkpoint: XA branches whose outcome is open there, and the last time that was assigned to a transaction.
CREATE TABLE IF NOT EXISTS stream (
  workflow         VARCHAR(48)  CHARACTER SET ascii COLLATE ascii_bin  NOT NULL,
  assigned_micros  BIGINT                                              NOT NULL,
  held             LONGTEXT     CHARACTER SET ascii                    NOT NULL,
  PRIMARY KEY (workflow)
) ENGINE=InnoDB;
