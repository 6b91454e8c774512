-- Times are milliseconds since 1970, UTC.
CREATE TABLE orders (
  order_id    TEXT PRIMARY KEY,
  status      TEXT NOT NULL CHECK (status IN ('placed', 'paid', 'cancelling', 'confirmed', 'cancelled')),
  reason      TEXT NOT NULL DEFAULT '', -- why it is being cancelled or is cancelled
  customer_id TEXT NOT NULL,
  currency    TEXT NOT NULL,
  total       INTEGER NOT NULL,         -- minor units
  items       TEXT NOT NULL,            -- JSON: [{"sku":"widget","quantity":2}]
  request     TEXT NOT NULL,            -- identifies the content of the request that placed it
  instance    TEXT NOT NULL,            -- random: tells it from an earlier order of the same id
  created_at  INTEGER NOT NULL,
  updated_at  INTEGER NOT NULL          -- when the status last changed
);

-- Lists, newest first: of all, of a customer, of a status.
CREATE INDEX orders_created ON orders (created_at, order_id);
CREATE INDEX orders_customer ON orders (customer_id, created_at, order_id);
CREATE INDEX orders_status ON orders (status, created_at, order_id);
