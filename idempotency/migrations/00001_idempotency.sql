-- The same on SQLite and Postgres. Times are milliseconds since 1970 by the database's clock.
CREATE TABLE idempotency (
  key         TEXT PRIMARY KEY,  -- a hash of scope and Idempotency-Key
  fingerprint TEXT NOT NULL,     -- tells the request from others
  owner       TEXT NOT NULL,     -- which run of the request has the key
  until       BIGINT NOT NULL,   -- when its lease is over
  expires     BIGINT NOT NULL,   -- when the key is forgotten
  answer      TEXT               -- JSON; NULL while the request is under way
);

CREATE INDEX idempotency_expires ON idempotency (expires);
