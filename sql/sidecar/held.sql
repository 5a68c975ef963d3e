-- Why a workflow is held now, as values for programs: what throttles its copy, what keeps its gate shut (JSON).
CREATE TABLE IF NOT EXISTS held (
  workflow    VARCHAR(48)  CHARACTER SET ascii COLLATE ascii_bin  NOT NULL,
  what        VARCHAR(16)  CHARACTER SET ascii COLLATE ascii_bin  NOT NULL,
  reasons     TEXT         CHARACTER SET utf8mb4                  NOT NULL,
  written_at  DATETIME(6)                                         NOT NULL,
  PRIMARY KEY (workflow, what)
) ENGINE=InnoDB;
