-- What is delivered beyond `webhook.since`: entries become visible in the order of their commits, not of their ids.
CREATE TABLE IF NOT EXISTS webhook_delivered (
  hook   CHAR(64)  CHARACTER SET ascii COLLATE ascii_bin  NOT NULL,
  entry  BIGINT                                           NOT NULL,
  PRIMARY KEY (hook, entry)
) ENGINE=InnoDB;
