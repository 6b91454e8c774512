package sqlite_test

import (
	"context"
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/farandole/farandole/bustest"
	"github.com/farandole/farandole/event"
	"github.com/farandole/farandole/outbox"
)

func TestRelay_takes_together_what_comes_one_after_another(t *testing.T) {
	t.Parallel()
	db := open(t, filepath.Join(t.TempDir(), "x.db"))
	b := bustest.NewBus(t)
	o, err := outbox.New(db, outbox.Config{Dialect: outbox.SQLite, Names: b.Names(), Source: "/test"})
	must(t, err)
	must(t, o.Migrate(t.Context()))
	metrics := prometheus.NewRegistry()
	r, err := outbox.NewRelay(o, b, outbox.RelayConfig{Metrics: metrics})
	must(t, err)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	begun := time.Now()
	go func() { ended <- r.Run(ctx) }()
	const rows = 300
	for i := range rows {
		e, err := o.Seal(event.Draft{Type: "order.placed.v1", Key: event.Key(fmt.Sprint("ord-", i))})
		must(t, err)
		tx, err := db.BeginTx(t.Context(), nil)
		must(t, err)
		must(t, o.Add(t.Context(), tx, e))
		must(t, tx.Commit())
		o.Wake()
	}
	bustest.Eventually(t, time.Minute, func() bool {
		s, err := o.Stats(t.Context())
		return err == nil && s.Pending+s.Processing == 0
	})
	stop()
	must(t, <-ended)
	took := time.Since(begun)
	if got, most := batches(t, metrics), int(took/(10*time.Millisecond))+2; got == 0 || got > most {
		t.Errorf("%d rows were claimed in %d batches within %v, want at most %d", rows, got, took, most)
	}
}

// batches is how many a relay has published.
func batches(t *testing.T, metrics *prometheus.Registry) int {
	t.Helper()
	all, err := metrics.Gather()
	must(t, err)
	for _, f := range all {
		if f.GetName() == "farandole_outbox_batch_seconds" {
			return int(f.GetMetric()[0].GetHistogram().GetSampleCount())
		}
	}
	return 0
}
