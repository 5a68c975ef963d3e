-- Who may write for a workflow. The row changes on a takeover only: every transaction of ours locks it in share mode.
CREATE TABLE IF NOT EXISTS lease (
  workflow  VARCHAR(48)   CHARACTER SET ascii COLLATE ascii_bin  NOT NULL,
  role      VARCHAR(16)   CHARACTER SET ascii                    NOT NULL,
  token     BIGINT                                               NOT NULL,
  holder    VARCHAR(255)  CHARACTER SET utf8mb4                  NOT NULL,
  taken_at  DATETIME(6)                                          NOT NULL,
  PRIMARY KEY (workflow, role)
) ENGINE=InnoDB;
