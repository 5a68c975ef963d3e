-- Whether a copy chunk may start. The replicating process rewrites it every 250 ms, and reads it back from the binary
-- log: it is the stream's heartbeat too.
CREATE TABLE IF NOT EXISTS gate (
  workflow    VARCHAR(48)   CHARACTER SET ascii COLLATE ascii_bin  NOT NULL,
  is_open     TINYINT                                              NOT NULL,
  reason      VARCHAR(255)  CHARACTER SET utf8mb4                  NOT NULL,
  beat        BIGINT                                               NOT NULL,
  written_at  DATETIME(6)                                          NOT NULL,
  PRIMARY KEY (workflow)
) ENGINE=InnoDB;
