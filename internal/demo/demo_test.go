package demo

import (
	"errors"
	"flag"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/farandole/farandole/bustest"
	"github.com/farandole/farandole/internal/database"
	"github.com/farandole/farandole/internal/ledger"
	"github.com/farandole/farandole/internal/testkit/pgtest"
)

// TestMain runs four tests at once, for each waits most of the time, unless -parallel, which
// is parsed after this, says otherwise.
func TestMain(m *testing.M) {
	if err := flag.Set("test.parallel", "4"); err != nil {
		panic(err)
	}
	bustest.Main(m)
}

// runDemo runs a demo whose audit must hold and whose accounts must add up.
func runDemo(t *testing.T, cfg Config) Report {
	t.Helper()
	cfg.Logger = zerolog.Nop()
	told := cfg.Notice
	cfg.Notice = func(text string) {
		t.Log(text)
		if told != nil {
			told(text)
		}
	}
	cfg.Patience = 10 * time.Minute // for machines that do much else
	r, err := Run(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range r.Audit.Violations {
		t.Error(v)
	}
	if !r.Audit.OK || r.Orders != cfg.Orders || r.Confirmed+r.Cancelled != cfg.Orders || r.Unfinished != 0 {
		t.Errorf("orders: %d of %d confirmed, %d cancelled, %d unfinished, audit ok %v", r.Confirmed, r.Orders, r.Cancelled, r.Unfinished, r.Audit.OK)
	}
	if r.DeadLettered != r.Replayed+r.Kept {
		t.Errorf("%d dead-lettered, %d replayed and %d kept", r.DeadLettered, r.Replayed, r.Kept)
	}
	if r.DuplicatesSuppressed != r.DuplicatesInjected {
		t.Errorf("%d duplicates, %d suppressed", r.DuplicatesInjected, r.DuplicatesSuppressed)
	}
	for i, o := range plan(cfg.Orders, cfg.Seed, cfg.Faults) {
		want := "cancelled"
		if o.confirmed() {
			want = "confirmed"
		}
		if i < len(r.Outcomes) && r.Outcomes[i] != want {
			t.Errorf("order %d of %s is %s, want %s", i, o.customer, r.Outcomes[i], want)
		}
	}
	return r
}

func TestDemo_without_trouble(t *testing.T) {
	t.Parallel()
	r := runDemo(t, Config{Orders: 30, Seed: 1, Faults: None})
	if r.DeadLettered+r.CrashesInjected+r.DuplicatesInjected != 0 {
		t.Errorf("trouble: %+v", r)
	}
}

func TestDemo_has_the_same_outcome_for_the_same_seed(t *testing.T) {
	t.Parallel()
	first := runDemo(t, Config{Orders: 40, Seed: 7, Faults: Some})
	second := runDemo(t, Config{Orders: 40, Seed: 7, Faults: Some})
	if !slices.Equal(first.Outcomes, second.Outcomes) {
		t.Errorf("outcomes differ:\n%v\n%v", first.Outcomes, second.Outcomes)
	}
	// Of three messages that nobody can handle two are unreadable, for both
	// services that react to new orders.
	if first.CrashesInjected != 3 || first.Replayed == 0 || first.Kept != 5 {
		t.Errorf("too little trouble: %+v", first)
	}
}

// The breaker of the gateway opens, payment pauses, one process probes, and all goes on.
// Nobody spends an attempt meanwhile: the audit has looked.
func TestDemo_in_an_outage(t *testing.T) {
	t.Parallel()
	var story []string
	r := runDemo(t, Config{Orders: 100, Seed: 1, Faults: Outage, Notice: func(text string) { story = append(story, text) }})
	if r.CrashesInjected+r.DuplicatesInjected != 0 || r.Injected.OutageMS < 2000 { // of dead letters the audit says why
		t.Errorf("other trouble, or none: %+v", r)
	}
	if o := r.Audit.Outages; o.Opened == 0 || o.NotClosedMS < 1000 || o.Attempts+o.DeadLetters != 0 {
		t.Errorf("outages %+v", o)
	}
	for _, part := range []string{
		"payment gateway down for", "breaker of the gateway opens", "payment pauses for", "probes the gateway", "the breaker closes",
	} {
		at := slices.IndexFunc(story, func(text string) bool { return strings.Contains(text, part) })
		if at < 0 {
			t.Fatalf("nobody was told %q after the rest of the story", part)
		}
		story = story[at:]
	}
}

// Six processes are killed three times each: two replicas of every service.
func TestDemo_in_a_storm(t *testing.T) {
	t.Parallel()
	r := runDemo(t, Config{Orders: 60, Seed: 3, Faults: Storm, Concurrency: 8, Ledger: ledger.Partition})
	if r.CrashesInjected != 18 || r.Kept != 25 || r.DuplicatesInjected == 0 {
		t.Errorf("too little trouble: %+v", r)
	}
}

// The demo leaves nothing behind in somebody's database, and can be repeated there.
func TestDemo_on_Postgres(t *testing.T) {
	t.Parallel()
	target := pgtest.Database(t)
	r := runDemo(t, Config{Orders: 40, Seed: 3, Faults: Storm, Concurrency: 8, DatabaseURL: target})
	if r.CrashesInjected != 18 || r.Kept != 25 || r.DuplicatesInjected == 0 {
		t.Errorf("too little trouble: %+v", r)
	}
	runDemo(t, Config{Orders: 20, Seed: 3, Faults: None, DatabaseURL: target})
	db, err := database.Open(target)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	}()
	var left int
	err = db.DB.QueryRowContext(t.Context(), `SELECT count(*) FROM information_schema.tables
		WHERE table_schema NOT IN ('pg_catalog', 'information_schema')`).Scan(&left)
	if err != nil || left != 0 {
		t.Errorf("%d tables are left (%v)", left, err)
	}
}

func TestDemo_of_one_order(t *testing.T) {
	t.Parallel()
	runDemo(t, Config{Orders: 1, Seed: 1, Faults: Some})
}

func TestDemo_refuses_nonsense(t *testing.T) {
	t.Parallel()
	for _, cfg := range []Config{{Orders: -1}, {Concurrency: -1}, {Rate: -1}, {Faults: "rain"}, {Patience: -1}, {Faults: Outage, Orders: MinOutage - 1}} {
		if _, err := Run(t.Context(), cfg); !errors.Is(err, ErrConfig) {
			t.Errorf("%+v: %v", cfg, err)
		}
	}
	for _, target := range []string{"order.db", "postgres://u:s3cret@h:port/d", "mysql://u:s3cret@h/d"} {
		if _, err := Run(t.Context(), Config{DatabaseURL: target}); !errors.Is(err, ErrConfig) || strings.Contains(err.Error(), "s3cret") {
			t.Errorf("%s: %v", target, err)
		}
	}
}

func TestPlan_is_a_function_of_the_seed(t *testing.T) {
	t.Parallel()
	for _, faults := range []Faults{None, Some, Outage, Storm} {
		one, two, other := plan(200, 1, faults), plan(200, 1, faults), plan(200, 2, faults)
		if fmt.Sprint(one) != fmt.Sprint(two) {
			t.Errorf("%s: the same seed has two plans", faults)
		}
		if fmt.Sprint(one) == fmt.Sprint(other) {
			t.Errorf("%s: two seeds have one plan", faults)
		}
		for _, s := range shares[faults] {
			if !slices.ContainsFunc(one, func(o plannedOrder) bool { return o.kind == s.kind }) {
				t.Errorf("%s: no order of kind %d", faults, s.kind)
			}
		}
	}
}
