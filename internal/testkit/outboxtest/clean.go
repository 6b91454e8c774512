package outboxtest

import (
	"time"

	"github.com/farandole/farandole/outbox"
)

// cleanUp begins with rows and marks of long ago.
func cleanUp(r *rig) {
	const old, young = 10_000, 100
	r.exec(`INSERT INTO outbox (message_id, subject, key, status, published_at, due_at, created_at)
		WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 10110)
		SELECT 'old-' || CAST(i AS text), 'events.order.placed.v1.old', 'old-' || CAST(i AS text),
			CASE WHEN i % 1000 = 500 THEN CASE WHEN i % 2000 = 500 THEN 'PENDING' ELSE 'DEAD_LETTER' END ELSE 'PUBLISHED' END,
			CASE WHEN i % 1000 = 500 THEN NULL WHEN i > 10010 THEN ` + r.past(0) + ` ELSE ` + r.past(3600) + ` END,
			CASE WHEN i % 2000 = 500 THEN ` + r.past(-3600) + ` END,
			` + r.past(7200) + ` FROM n`)
	r.eventually(counts{outbox.Published: old + young, outbox.Pending: 5, outbox.DeadLetter: 5})
	r.exec(`INSERT INTO inbox (consumer, event_key, revision, mark, expires_at)
		VALUES ('a', 'over', 1, '', ` + r.past(60) + `), ('a', 'good', 1, '', ` + r.past(-3600) + `), ('a', 'forever', 1, '', NULL)`)

	r.relay(outbox.RelayConfig{Retention: 10 * time.Minute})
	const added = 200
	r.add(r.events(added/10, keys("new-", 10)...)...)
	r.eventually(counts{outbox.Published: young + added, outbox.Pending: 5, outbox.DeadLetter: 5})
	r.becomes(0, "inbox WHERE event_key = 'over'")
	if got := r.count("inbox"); got != 2 {
		r.Errorf("%d marks are left, want 2", got)
	}
}
