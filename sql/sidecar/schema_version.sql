-- Which version of these tables this server holds; one row.
CREATE TABLE IF NOT EXISTS schema_version (
  id       TINYINT     NOT NULL,
  version  INT         NOT NULL,
  PRIMARY KEY (id)
) ENGINE=InnoDB;
