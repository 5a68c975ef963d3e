-- Append-only: what cannot be undone, who asked for it and when.
CREATE TABLE IF NOT EXISTS journal (
  id        BIGINT                                               NOT NULL AUTO_INCREMENT,
  workflow  VARCHAR(48)   CHARACTER SET ascii COLLATE ascii_bin  NOT NULL,
  at        DATETIME(6)                                          NOT NULL,
  actor     VARCHAR(255)  CHARACTER SET utf8mb4                  NOT NULL,
  event     VARCHAR(48)   CHARACTER SET ascii                    NOT NULL,
  details   TEXT          CHARACTER SET utf8mb4                  NOT NULL,
  PRIMARY KEY (id),
  KEY by_workflow (workflow, id)
) ENGINE=InnoDB;
