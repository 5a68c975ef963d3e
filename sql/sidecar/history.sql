-- The progress row over time, one point every five seconds; older ones are put together by the minute and by ten minutes.
-- `slot` counts five-second steps of the server's clock. Counters add up; of lag and backlog the worst is kept.
CREATE TABLE IF NOT EXISTS history (
  workflow            VARCHAR(48)   CHARACTER SET ascii COLLATE ascii_bin  NOT NULL,
  slot                BIGINT                                               NOT NULL,
  phase               VARCHAR(16)   CHARACTER SET ascii                    NOT NULL,
  rows_copied         BIGINT                                               NOT NULL DEFAULT 0,
  rows_per_second     DOUBLE                                               NULL,
  applied_per_second  DOUBLE                                               NULL,
  lag_seconds         DOUBLE                                               NULL,
  backlog             BIGINT                                               NULL,
  chunk_rows          BIGINT                                               NULL,
  chunk_millis        DOUBLE                                               NULL,
  throttled           VARCHAR(255)  CHARACTER SET utf8mb4                  NULL,
  cutover_attempts    INT                                                  NOT NULL DEFAULT 0,
  eta_at              DATETIME                                             NULL,
  PRIMARY KEY (workflow, slot)
) ENGINE=InnoDB;
