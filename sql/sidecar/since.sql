-- What catch-up has written since the verification began: its keys are collected round by round and compared again.
CREATE TABLE IF NOT EXISTS since (
  workflow      VARCHAR(48)  CHARACTER SET ascii COLLATE ascii_bin  NOT NULL,
  first_round   BIGINT                                              NOT NULL,
  round         BIGINT                                              NOT NULL,
  collected     MEDIUMTEXT   CHARACTER SET utf8mb4                  NOT NULL,
  is_void       TINYINT                                             NOT NULL DEFAULT 0,
  is_verified   TINYINT                                             NOT NULL DEFAULT 0,
  keys_waiting  BIGINT                                              NOT NULL DEFAULT 0,
  PRIMARY KEY (workflow)
) ENGINE=InnoDB;
