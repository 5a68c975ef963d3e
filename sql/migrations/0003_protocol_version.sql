-- What is called the protocol version everywhere has that name here, too.
ALTER TABLE _vreplication.workflow ADD COLUMN protocol INT NOT NULL AFTER kind;

UPDATE _vreplication.workflow SET protocol=mechanism;

ALTER TABLE _vreplication.workflow DROP COLUMN mechanism;

ALTER TABLE _vreplication.worker ADD COLUMN protocol INT NOT NULL AFTER token;

UPDATE _vreplication.worker SET protocol=mechanism;

ALTER TABLE _vreplication.worker DROP COLUMN mechanism;
