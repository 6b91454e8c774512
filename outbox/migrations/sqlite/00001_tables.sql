-- Times are milliseconds since 1970, UTC.
CREATE TABLE {prefix}outbox (
  id           INTEGER PRIMARY KEY AUTOINCREMENT,
  message_id   TEXT NOT NULL UNIQUE,
  subject      TEXT NOT NULL,
  key          TEXT NOT NULL,
  headers      TEXT NOT NULL DEFAULT '{}',
  data         BLOB NOT NULL DEFAULT x'',
  status       TEXT NOT NULL DEFAULT 'PENDING'
               CHECK (status IN ('PENDING', 'PROCESSING', 'PUBLISHED', 'DEAD_LETTER')),
  due_at       INTEGER,
  owner        TEXT,
  attempts     INTEGER NOT NULL DEFAULT 0,
  story        TEXT NOT NULL DEFAULT '[]',
  created_at   INTEGER NOT NULL DEFAULT (CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)),
  published_at INTEGER,
  CHECK (due_at IS NULL OR status IN ('PENDING', 'PROCESSING'))
);

-- What is to be published, in order.
CREATE INDEX {prefix}outbox_open ON {prefix}outbox (id) WHERE status IN ('PENDING', 'PROCESSING');
-- What later rows of its key wait for: a leased row, or one that waits for its next try.
CREATE INDEX {prefix}outbox_held ON {prefix}outbox (key, id) WHERE due_at IS NOT NULL;
CREATE INDEX {prefix}outbox_dead ON {prefix}outbox (id) WHERE status = 'DEAD_LETTER';

CREATE TABLE {prefix}inbox (
  consumer   TEXT NOT NULL,
  event_key  TEXT NOT NULL,
  revision   INTEGER NOT NULL,
  mark       TEXT NOT NULL,
  written_at INTEGER NOT NULL DEFAULT (CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)),
  expires_at INTEGER,
  PRIMARY KEY (consumer, event_key)
) WITHOUT ROWID;
CREATE INDEX {prefix}inbox_expiry ON {prefix}inbox (expires_at) WHERE expires_at IS NOT NULL;
