-- Of rows that a feed has sent by their key alone: up to where the source had come when rows of a table were last asked.
--   source   the server that was asked
--   asked_at its clock then, microseconds
--   gtids    what stood in its log by then; '' where that names no transactions
CREATE TABLE IF NOT EXISTS feed_asked (
  consumer_group  VARCHAR(128)  CHARACTER SET ascii COLLATE ascii_bin  NOT NULL,
  topic           VARCHAR(249)  CHARACTER SET ascii COLLATE ascii_bin  NOT NULL,
  number          INT                                                  NOT NULL,
  source          VARCHAR(64)   CHARACTER SET ascii COLLATE ascii_bin  NOT NULL,
  schema_name     VARCHAR(64)   CHARACTER SET utf8mb4 COLLATE utf8mb4_bin  NOT NULL,
  table_name      VARCHAR(64)   CHARACTER SET utf8mb4 COLLATE utf8mb4_bin  NOT NULL,
  asked_at        BIGINT                                               NOT NULL,
  gtids           MEDIUMTEXT    CHARACTER SET ascii                    NOT NULL,
  PRIMARY KEY (consumer_group, topic, number, source, schema_name, table_name)
) ENGINE=InnoDB;
