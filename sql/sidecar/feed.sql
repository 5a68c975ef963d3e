-- One row a change feed: how many partitions there shall be, and how it goes. Where it goes on is said in Kafka.
CREATE TABLE IF NOT EXISTS feed (
  workflow           VARCHAR(48)   CHARACTER SET ascii COLLATE ascii_bin  NOT NULL,
  wanted_partitions  INT                                                  NULL,
  figures            LONGTEXT      CHARACTER SET utf8mb4                  NULL,
  written_at         DATETIME(6)                                          NOT NULL,
  PRIMARY KEY (workflow)
) ENGINE=InnoDB;
