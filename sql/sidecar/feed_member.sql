-- Processes of a group of consumers, and when each was heard of last. is_going: 0 once it has ended in order.
CREATE TABLE IF NOT EXISTS feed_member (
  consumer_group  VARCHAR(128)  CHARACTER SET ascii COLLATE ascii_bin  NOT NULL,
  topic           VARCHAR(249)  CHARACTER SET ascii COLLATE ascii_bin  NOT NULL,
  member          VARCHAR(128)  CHARACTER SET utf8mb4                  NOT NULL,
  seen_at         DATETIME(6)                                          NOT NULL,
  is_going        TINYINT                                              NOT NULL,
  PRIMARY KEY (consumer_group, topic, member)
) ENGINE=InnoDB;
