-- How long the parts of earlier workflows took on this server; the newest some hundred are kept, whatever becomes of the
-- workflows. units: rows, weighted by their width. write_rate: changes a second that were applied meanwhile.
CREATE TABLE IF NOT EXISTS pace (
  id           BIGINT                                               NOT NULL AUTO_INCREMENT,
  workflow     VARCHAR(48)   CHARACTER SET ascii COLLATE ascii_bin  NOT NULL,
  part         VARCHAR(16)   CHARACTER SET ascii                    NOT NULL,
  source_name  VARCHAR(160)  CHARACTER SET utf8mb4                  NOT NULL,
  units        DOUBLE                                               NOT NULL,
  seconds      DOUBLE                                               NOT NULL,
  write_rate   DOUBLE                                               NULL,
  noted_at     DATETIME(6)                                          NOT NULL,
  PRIMARY KEY (id),
  KEY by_part (part, id)
) ENGINE=InnoDB;
