-- All that stands on the source of tables that move: rows that are written to come back through its binary log.
--   id beat                our heartbeat: the source's time, and that its log goes on
--   id open/TABLE/SPLIT    the chunk of that split that has been opened last (detail: JSON)
--   id fence               of the stream that goes back: who may write rows here, and how far it has come
--   id connections/ROLE    who has connections here; ended by who takes over
--   else                   a marker
CREATE TABLE IF NOT EXISTS stream_marker (
  stream      VARCHAR(64)      CHARACTER SET ascii COLLATE ascii_bin  NOT NULL,
  id          VARCHAR(96)      CHARACTER SET ascii COLLATE ascii_bin  NOT NULL,
  kind        VARCHAR(16)      CHARACTER SET ascii                    NOT NULL,
  number      BIGINT UNSIGNED                                         NOT NULL DEFAULT 0,
  detail      MEDIUMTEXT       CHARACTER SET utf8mb4                  NULL,
  written_at  DATETIME(6)                                             NOT NULL,
  PRIMARY KEY (stream, id)
) ENGINE=InnoDB;
