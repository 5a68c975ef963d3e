-- Signs of life of a lease's holder, beside the lease so that writing them never waits for its readers.
-- server_started: when the server on which the connections are was started, and a digest of its name (state/lease.py).
CREATE TABLE IF NOT EXISTS heartbeat (
  workflow        VARCHAR(48)  CHARACTER SET ascii COLLATE ascii_bin  NOT NULL,
  role            VARCHAR(16)  CHARACTER SET ascii                    NOT NULL,
  token           BIGINT                                              NOT NULL,
  at              DATETIME(6)                                         NOT NULL,
  connections     TEXT         CHARACTER SET ascii                    NOT NULL,
  server_started  BIGINT                                              NOT NULL,
  PRIMARY KEY (workflow, role)
) ENGINE=InnoDB;
