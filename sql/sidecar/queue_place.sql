-- Where a person has moved a waiting migration to: it goes in the queue as if its priority were `place`. What was asked
-- for stays in the queue's row, for a file is compared with it.
CREATE TABLE IF NOT EXISTS queue_place (
  workflow  VARCHAR(48)  CHARACTER SET ascii COLLATE ascii_bin  NOT NULL,
  place     INT                                                 NOT NULL,
  PRIMARY KEY (workflow)
) ENGINE=InnoDB;
