-- Migrations that wait for their time, one row each; what was once started, refused or removed stays, so that an id is
-- never taken twice. How a started one stands, its workflow row says.
CREATE TABLE IF NOT EXISTS queue (
  number          BIGINT                                               NOT NULL AUTO_INCREMENT,
  workflow        VARCHAR(48)   CHARACTER SET ascii COLLATE ascii_bin  NOT NULL,
  source_conn_id  VARCHAR(250)  CHARACTER SET utf8mb4                  NULL,
  source_schema   VARCHAR(64)   CHARACTER SET utf8mb4                  NOT NULL,
  source_table    VARCHAR(64)   CHARACTER SET utf8mb4                  NOT NULL,
  spec            LONGTEXT      CHARACTER SET utf8mb4                  NOT NULL,
  not_before      DATETIME(6)                                          NULL,
  after_workflow  VARCHAR(48)   CHARACTER SET ascii COLLATE ascii_bin  NULL,
  priority        INT                                                  NOT NULL DEFAULT 0,
  state           VARCHAR(8)    CHARACTER SET ascii                    NOT NULL,
  reason          TEXT          CHARACTER SET utf8mb4                  NULL,
  submitted_by    VARCHAR(255)  CHARACTER SET utf8mb4                  NOT NULL,
  submitted_at    DATETIME(6)                                          NOT NULL,
  started_by      VARCHAR(255)  CHARACTER SET utf8mb4                  NULL,
  started_at      DATETIME(6)                                          NULL,
  PRIMARY KEY (number),
  UNIQUE KEY by_workflow (workflow)
) ENGINE=InnoDB;
