CREATE TABLE orders (
  order_id    text PRIMARY KEY,
  status      text NOT NULL CHECK (status IN ('placed', 'paid', 'cancelling', 'confirmed', 'cancelled')),
  reason      text NOT NULL DEFAULT '', -- why it is being cancelled or is cancelled
  customer_id text NOT NULL,
  currency    text NOT NULL,
  total       bigint NOT NULL,          -- minor units
  items       text NOT NULL,            -- JSON: [{"sku":"widget","quantity":2}]
  request     text NOT NULL,            -- identifies the content of the request that placed it
  instance    text NOT NULL,            -- random: tells it from an earlier order of the same id
  created_at  timestamptz NOT NULL,
  updated_at  timestamptz NOT NULL      -- when the status last changed
);

-- Lists, newest first: of all, of a customer, of a status.
CREATE INDEX orders_created ON orders (created_at, order_id);
CREATE INDEX orders_customer ON orders (customer_id, created_at, order_id);
CREATE INDEX orders_status ON orders (status, created_at, order_id);
