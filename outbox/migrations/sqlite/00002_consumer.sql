-- Whose step has written a row; NULL for rows of anybody else: only rows of steps
-- are timers.
ALTER TABLE {prefix}outbox ADD COLUMN consumer TEXT;
UPDATE {prefix}outbox SET consumer = rest.consumer
FROM (
  SELECT id, substr(after, 1, instr(after, '.') - 1) AS consumer
  FROM (SELECT id, substr(subject, instr('.' || subject, '.timer.') + 6) AS after FROM {prefix}outbox
    WHERE status <> 'PUBLISHED' AND instr('.' || subject, '.timer.') > 0)
) AS rest
WHERE {prefix}outbox.id = rest.id;
