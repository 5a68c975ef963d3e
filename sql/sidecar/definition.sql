-- What SHOW CREATE TABLE said of an online DDL's table before it, and what it will say afterwards; NULL: not known yet.
CREATE TABLE IF NOT EXISTS definition (
  workflow     VARCHAR(48)  CHARACTER SET ascii COLLATE ascii_bin  NOT NULL,
  before_sql   LONGTEXT     CHARACTER SET utf8mb4                  NOT NULL,
  after_sql    LONGTEXT     CHARACTER SET utf8mb4                  NULL,
  has_foreign  TINYINT                                             NOT NULL,
  PRIMARY KEY (workflow)
) ENGINE=InnoDB;
