-- The key range of one Spark task. Bounds are JSON lists of SQL literals; (lower, upper], the first one [lower, upper].
CREATE TABLE IF NOT EXISTS split (
  workflow        VARCHAR(48)  CHARACTER SET ascii COLLATE ascii_bin  NOT NULL,
  split           INT                                                 NOT NULL,
  lower_bound     LONGTEXT     CHARACTER SET utf8mb4                  NOT NULL,
  upper_bound     LONGTEXT     CHARACTER SET utf8mb4                  NOT NULL,
  has_lower       TINYINT                                             NOT NULL,
  estimated_rows  BIGINT                                              NOT NULL,
  attempt         BIGINT                                              NOT NULL,
  is_done         TINYINT                                             NOT NULL,
  PRIMARY KEY (workflow, split)
) ENGINE=InnoDB;
