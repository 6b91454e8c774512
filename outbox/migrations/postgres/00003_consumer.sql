-- Whose step has written a row; NULL for rows of anybody else, who may not write
-- this column: only rows of steps are timers.
ALTER TABLE {prefix}outbox ADD COLUMN consumer text;
UPDATE {prefix}outbox SET consumer = substring(subject FROM '^(?:[a-z][a-z0-9-]*[.])?timer[.]([a-z][a-z0-9-]*)[.]')
  WHERE status <> 'PUBLISHED' AND subject ~ '^(?:[a-z][a-z0-9-]*[.])?timer[.]';

DROP FUNCTION {prefix}outbox_claim(integer, text, interval, interval);

-- Leases up to most rows to claimer and returns them. Claims take turns, and each
-- statement of the function sees what was committed before it began, so that no
-- claim can miss what the one before has leased. Rows that somebody else locks at
-- this moment are passed over, and rows that have no time and are younger than age.
-- No relay sets a time of more than an hour: who did would hold the key for ever.
CREATE FUNCTION {prefix}outbox_claim(most integer, claimer text, lease interval, age interval DEFAULT '0')
RETURNS TABLE (
  id bigint, message_id text, subject text, key text, headers text, data bytea, attempts integer, story text,
  created_at timestamptz, consumer text
) LANGUAGE plpgsql
-- A table that fills and empties makes Postgres sort 100,000 rows for the first
-- 500, or compare all with all. So the order is that of the index; and what has
-- OFFSET 0 is asked for each row, of the index of held rows.
SET lock_timeout = '10s' SET enable_sort = off SET enable_bitmapscan = off SET enable_seqscan = off SET jit = off
AS $$
#variable_conflict use_column
DECLARE
  ids bigint[];
  sizes bigint[];
  t timestamptz;
  held text[]; -- keys
  firsts bigint[];
BEGIN
  IF current_setting('transaction_isolation') <> 'read committed' THEN
    RAISE EXCEPTION 'a relay needs the isolation level read committed';
  END IF;
  PERFORM pg_advisory_xact_lock(hashtextextended('{prefix}outbox_claim', '{prefix}outbox'::regclass::oid::bigint));
  t := clock_timestamp(); -- one time for all rows: none may fall due between two looks
  SELECT array_agg(f.id), array_agg(f.size) INTO ids, sizes FROM (
    SELECT o.id, octet_length(o.data) AS size FROM {prefix}outbox o
    WHERE o.open AND (o.due_at <= t OR o.due_at > t + interval '1 h' OR o.due_at IS NULL AND (age = interval '0' OR o.created_at <= t - age))
    AND NOT EXISTS (
      SELECT FROM {prefix}outbox h
      WHERE h.key = o.key AND h.id < o.id AND h.open AND h.due_at > t AND h.due_at <= t + interval '1 h' OFFSET 0
    )
    ORDER BY o.id LIMIT most FOR UPDATE OF o SKIP LOCKED
  ) f;
  -- No more than the relay has memory for.
  ids := ARRAY(
    SELECT s.id FROM (
      SELECT f.id, sum(f.size) OVER (ROWS UNBOUNDED PRECEDING) - f.size AS before FROM unnest(ids, sizes) f (id, size)
    ) s WHERE before < 4194304
  );
  UPDATE {prefix}outbox SET status = 'PROCESSING', owner = claimer, due_at = t + lease WHERE id = ANY (ids);
  -- A row that was passed over may be one that somebody is just about to give
  -- back, lease or yield, whether it had a time or not: what follows it in its key
  -- has to wait for the outcome.
  SELECT array_agg(mine.key), array_agg(ahead.first) INTO held, firsts
  FROM (SELECT key, max(id) AS last FROM {prefix}outbox WHERE id = ANY (ids) GROUP BY key) mine
  CROSS JOIN LATERAL (
    SELECT min(h.id) AS first FROM (
      SELECT id FROM {prefix}outbox
      WHERE key = mine.key AND id < mine.last AND open AND owner IS DISTINCT FROM claimer OFFSET 0
    ) h
  ) ahead WHERE ahead.first IS NOT NULL;
  IF held IS NOT NULL THEN
    UPDATE {prefix}outbox o SET status = 'PENDING', owner = NULL, due_at = t
    FROM unnest(held, firsts) AS ahead (key, first)
    WHERE o.id = ANY (ids) AND o.key = ahead.key AND o.id > ahead.first;
  END IF;
  RETURN QUERY SELECT o.id, o.message_id, o.subject, o.key, o.headers, o.data, o.attempts, o.story, o.created_at, o.consumer
    FROM {prefix}outbox o WHERE o.id = ANY (ids) AND o.owner = claimer ORDER BY o.id;
END $$;
