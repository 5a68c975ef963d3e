-- One row a group of consumers of a feed's topic, which writes it into this server.
--   mode        row or transaction
--   topic_id    of the topic that the offsets belong to; one that was made anew has another
--   generation  whose partitions, the first `partitions`, are read; 0 until Admin of the first is found
--   watermark   mode transaction: everything up to this time is here, and nothing else
--   ddl_done    time of the last DDL that was run; ddl_intent: of the one that is being run, with the definitions before it
CREATE TABLE IF NOT EXISTS feed_consumer (
  consumer_group  VARCHAR(128)  CHARACTER SET ascii COLLATE ascii_bin  NOT NULL,
  topic           VARCHAR(249)  CHARACTER SET ascii COLLATE ascii_bin  NOT NULL,
  mode            VARCHAR(12)   CHARACTER SET ascii                    NOT NULL,
  topic_id        VARCHAR(64)   CHARACTER SET ascii                    NOT NULL,
  generation      BIGINT                                               NOT NULL,
  partitions      INT                                                  NOT NULL,
  watermark       BIGINT                                               NOT NULL,
  ddl_done        BIGINT                                               NOT NULL,
  ddl_intent      BIGINT                                               NULL,
  ddl_before      LONGTEXT      CHARACTER SET utf8mb4                  NULL,
  PRIMARY KEY (consumer_group, topic)
) ENGINE=InnoDB;
