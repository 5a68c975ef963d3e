-- One row a workflow that moves tables to this server: where the application writes, and how far a switch has come.
--   serving   source or target
--   decision  running -> denying -> decided -> opened -> running (of the other side), or denying -> aborting -> running
--   number    of the switch that is under way or comes next: 1 to the target, 2 back, ...
--   starts    where the stream to the target and the one back begin in the log that they read
--   secret    by which our own sessions pass the triggers that deny writes
CREATE TABLE IF NOT EXISTS move (
  workflow       VARCHAR(48)   CHARACTER SET ascii COLLATE ascii_bin  NOT NULL,
  target_schema  VARCHAR(64)   CHARACTER SET utf8mb4                  NOT NULL,
  source_at      VARCHAR(255)  CHARACTER SET utf8mb4                  NOT NULL,
  target_at      VARCHAR(255)  CHARACTER SET utf8mb4                  NOT NULL,
  source_server  VARCHAR(64)   CHARACTER SET ascii                    NOT NULL,
  serving        VARCHAR(8)    CHARACTER SET ascii                    NOT NULL,
  decision       VARCHAR(10)   CHARACTER SET ascii                    NOT NULL,
  number         INT                                                  NOT NULL,
  secret         CHAR(32)      CHARACTER SET ascii                    NOT NULL,
  forward_start  MEDIUMTEXT    CHARACTER SET utf8mb4                  NULL,
  back_start     MEDIUMTEXT    CHARACTER SET utf8mb4                  NULL,
  asked          VARCHAR(10)   CHARACTER SET ascii                    NULL,
  asked_by       VARCHAR(255)  CHARACTER SET utf8mb4                  NULL,
  stall_millis   INT                                                  NULL,
  decided_at     DATETIME(6)                                          NULL,
  PRIMARY KEY (workflow)
) ENGINE=InnoDB;
