-- Where journal entries are sent to, by a digest of its URL. source: what their ids begin with. since: all up to this
-- entry is delivered, or was there before.
CREATE TABLE IF NOT EXISTS webhook (
  hook    CHAR(64)  CHARACTER SET ascii COLLATE ascii_bin  NOT NULL,
  source  CHAR(16)  CHARACTER SET ascii COLLATE ascii_bin  NOT NULL,
  since   BIGINT                                           NOT NULL,
  PRIMARY KEY (hook)
) ENGINE=InnoDB;
