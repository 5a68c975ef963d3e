-- Where a group of consumers stands in each partition; changes in the transaction of the rows.
--   next_offset    the oldest message that is not done with; -2: the first that there is
--   n              of the last message that was applied
--   resolved       everything up to this time is applied
--   stand          '', or what its listener waits at, for all others to come: ddl, admin or align; stand_t: its time
--   stand_count    of Admin: partitions from there on
--   aligned_…      the last Align that was reached
CREATE TABLE IF NOT EXISTS feed_offset (
  consumer_group  VARCHAR(128)  CHARACTER SET ascii COLLATE ascii_bin  NOT NULL,
  topic           VARCHAR(249)  CHARACTER SET ascii COLLATE ascii_bin  NOT NULL,
  number          INT                                                  NOT NULL,
  next_offset     BIGINT                                               NOT NULL,
  n               BIGINT                                               NOT NULL,
  resolved        BIGINT                                               NOT NULL,
  generation      BIGINT                                               NOT NULL,
  stand           VARCHAR(8)    CHARACTER SET ascii                    NOT NULL DEFAULT '',
  stand_t         BIGINT                                               NOT NULL DEFAULT 0,
  stand_count     INT                                                  NOT NULL DEFAULT 0,
  aligned_epoch   BIGINT                                               NOT NULL DEFAULT 0,
  aligned_count   BIGINT                                               NOT NULL DEFAULT 0,
  PRIMARY KEY (consumer_group, topic, number)
) ENGINE=InnoDB;
