-- Which rules the program of a lease's holder knows (changes/protocol.py). Who has no row of its token knows the first.
CREATE TABLE IF NOT EXISTS worker (
  workflow   VARCHAR(48)  CHARACTER SET ascii COLLATE ascii_bin  NOT NULL,
  role       VARCHAR(16)  CHARACTER SET ascii                    NOT NULL,
  token      BIGINT                                              NOT NULL,
  protocol   INT                                                 NOT NULL,
  PRIMARY KEY (workflow, role)
) ENGINE=InnoDB;
