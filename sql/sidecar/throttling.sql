-- What an operator has set of a workflow's throttling since it began, as JSON: the name of an option → its value.
CREATE TABLE IF NOT EXISTS throttling (
  workflow  VARCHAR(48)  CHARACTER SET ascii COLLATE ascii_bin  NOT NULL,
  settings  TEXT         CHARACTER SET utf8mb4                  NOT NULL,
  PRIMARY KEY (workflow)
) ENGINE=InnoDB;
