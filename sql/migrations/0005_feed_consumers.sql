-- Where consumers of feeds stand that write to this server.
CREATE TABLE IF NOT EXISTS _vreplication.feed_consumer (
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

CREATE TABLE IF NOT EXISTS _vreplication.feed_offset (
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
