package e2e_test

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/farandole/farandole/bustest"
	"github.com/farandole/farandole/internal/follow"
	"github.com/farandole/farandole/internal/rest"
	"github.com/farandole/farandole/internal/testkit/pgtest"
	"github.com/farandole/farandole/services/audit"
	"github.com/farandole/farandole/services/inventory"
	"github.com/farandole/farandole/services/payment"
)

// Services, one after another of which is killed at random moments while
// customers order, on one node together with the NATS server, and on three
// nodes while streams and consumers change their leaders; with each ledger and
// each database.
// After each round every order has ended and the audit finds nothing wrong.
func TestKills(t *testing.T) {
	t.Parallel()
	rounds, killsEach, least := 1, 5, 10
	if long() {
		rounds, killsEach, least = 20, 4, 300
	}
	seed := uint64(3)
	if s := os.Getenv("FARANDOLE_SEED"); s != "" {
		var err error
		if seed, err = strconv.ParseUint(s, 10, 64); err != nil {
			t.Fatal(err)
		}
	}
	kills, orders, begin := 0, 0, time.Now()
	for _, c := range []struct {
		name, ledger string
		on           func(testing.TB, string, ...string) *fleet
		nodes        int
		postgres     bool
		long         bool
	}{
		{"one node, KV ledger", "kv", onOneNode, 1, false, true},
		{"one node, partition ledger", "partition", onOneNode, 1, false, false},
		{"one node, KV ledger, Postgres", "kv", onOneNode, 1, true, true}, // TestKills_of_services_and_relay has it always
		{"three nodes, KV ledger", "kv", onThreeNodes, 3, false, true},
		{"three nodes, partition ledger", "partition", onThreeNodes, 3, false, false},
	} {
		if c.long && !long() {
			continue
		}
		t.Run(c.name, func(t *testing.T) { // one after another: each wants the whole machine
			database := "" // a file
			if c.postgres {
				database = pgtest.Database(t)
			}
			s := &storm{fleet: c.on(t, database, "--ledger", c.ledger), seed: seed, cluster: c.nodes == 3}
			defer func() {
				t.Logf("%d kills, %d leader changes, %d restarts of what gave up, %d orders, seed %d", s.kills, s.steps, s.falls(), len(s.ids), seed)
			}()
			s.rage(rounds, killsEach)
			s.duplicate(30)
			if n := s.falls(); n > 0 {
				t.Errorf("%d services ended by themselves", n)
			}
			kills, orders = kills+s.kills, orders+len(s.ids)
		})
	}
	t.Logf("%d kills, %d orders, seed %d, %s", kills, orders, seed, time.Since(begin).Round(time.Second))
	if !t.Failed() && kills < least {
		t.Errorf("%d kills, want %d or more", kills, least)
	}
}

// storm kills a fleet's members while customers order.
type storm struct {
	*fleet
	seed    uint64     // of the first round; each further one has the next
	random  *rand.Rand // the round's
	cluster bool
	targets []*member // who is killed; nil: all

	ids          []string // of the orders
	kills, steps int
}

func (s *storm) rage(rounds, kills int) {
	s.t.Helper()
	for round := range rounds {
		s.round(round, kills)
		s.audit()
	}
	if s.cluster && s.steps == 0 {
		s.t.Error("no leader has changed")
	}
}

// round lets customers order while members are killed, and waits until every
// order has ended.
func (s *storm) round(round, kills int) {
	s.t.Helper()
	s.random = rand.New(rand.NewPCG(s.seed+uint64(round), 0))
	ctx, cancel := context.WithTimeout(s.t.Context(), 3*patience)
	defer cancel()
	solvent, broke := newCustomers(ctx, s.shop, 3, "ada"), newCustomers(ctx, s.shop, 1, "decline-bob")
	enough, ordered := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ordered)
		tick := time.NewTicker(25 * time.Millisecond)
		defer tick.Stop()
		for n := 0; ; n++ {
			keys := solvent.keys
			if n%5 == 0 {
				keys = broke.keys
			}
			select {
			case keys <- fmt.Sprint("round-", round, "-", n):
			case <-enough:
				return
			}
			select {
			case <-tick.C:
			case <-enough:
				return
			}
		}
	}()
	for range kills {
		s.pause()
		if s.cluster {
			s.stepDown()
		}
		targets := s.targets
		if targets == nil {
			targets = s.members
		}
		s.kill(targets[s.random.IntN(len(targets))])
	}
	close(enough)
	<-ordered
	s.ready()
	ids := append(solvent.done(s.t), broke.done(s.t)...)
	s.final(ids)
	s.ids = append(s.ids, ids...)
	counted.orders.Add(int64(len(ids)))
}

// pause lasts for a random moment.
func (s *storm) pause() { <-time.After(time.Duration(s.random.IntN(300)) * time.Millisecond) }

// kill kills a member, which is down for a moment.
func (s *storm) kill(m *member) {
	s.t.Helper()
	s.supervise() // what is killed has to be alive
	m.kill()
	s.kills++
	counted.kills.Add(1)
	s.pause()
	m.again()
}

// stepDown makes a stream or a consumer change its leader, every other time.
func (s *storm) stepDown() {
	s.t.Helper()
	targets := []string{
		"STREAM.LEADER.STEPDOWN.EVENTS", "STREAM.LEADER.STEPDOWN.EVENTS",
		"STREAM.LEADER.STEPDOWN.KV_dedup", "STREAM.LEADER.STEPDOWN.KV_payments",
		"CONSUMER.LEADER.STEPDOWN.EVENTS.order", "CONSUMER.LEADER.STEPDOWN.EVENTS.payment", "CONSUMER.LEADER.STEPDOWN.EVENTS.inventory",
	}
	n := s.random.IntN(2 * len(targets))
	if n >= len(targets) {
		return
	}
	// Without a leader at this moment nobody answers, or not with success.
	answer, err := s.bus.Conn().Request("$JS.API."+targets[n], nil, time.Second)
	var done struct{ Success bool }
	if err == nil && json.Unmarshal(answer.Data, &done) == nil && done.Success {
		s.steps++
		counted.leaders.Add(1)
	}
}

// audit waits until the audit has nothing to say against what there is, which
// lies in no dead letter.
func (s *storm) audit() (r audit.Report) {
	s.t.Helper()
	bustest.Eventually(s.t, patience, func() (err error) {
		s.supervise()
		if r, err = audit.Run(s.t.Context(), s.bus, s.db, s.books, s.ids...); err != nil {
			return err
		}
		if !r.OK || r.Unfinished+r.DeadLetters > 0 || r.Orders != len(s.ids) {
			return fmt.Errorf("%d of %d orders, %d unfinished, %d dead letters, %v", r.Orders, len(s.ids), r.Unfinished, r.DeadLetters, r.Violations)
		}
		return nil
	})
	return r
}

// duplicate kills all services, starts them again, and stores events once more
// that took effect long ago; the server has forgotten their message ids. The
// copies have no effect.
func (s *storm) duplicate(n int) {
	s.t.Helper()
	before := s.audit()
	for _, m := range s.members[1:] {
		s.kill(m)
	}
	s.ready()
	var stored []follow.Message
	err := follow.Read(s.t.Context(), s.bus, follow.Options{FromStart: true, NoFollow: true}, func(m follow.Message) error {
		stored = append(stored, m)
		return nil
	})
	if err != nil {
		s.t.Fatal(err)
	}
	for range n {
		s.copy(stored[s.random.IntN(len(stored))])
	}
	s.settled()
	after := s.audit()
	if after.Events != before.Events || after.Copies < before.Copies+n || after.CopiesSuppressed != after.Copies {
		s.t.Errorf("%d events and %d copies, %d of them without effect; there were %d events and %d copies before %d more",
			after.Events, after.Copies, after.CopiesSuppressed, before.Events, before.Copies, n)
	}
}

// copy stores a message again, as the server does when its duplicate window is over.
func (s *storm) copy(m follow.Message) {
	s.t.Helper()
	header := maps.Clone(m.Header)
	// With its message id it would be dropped, and what came in a batch does not go in one.
	maps.DeleteFunc(header, func(name string, _ []string) bool { return strings.HasPrefix(name, "Nats-") })
	bustest.Eventually(s.t, patience, func() error {
		_, err := s.bus.JetStream().PublishMsg(s.t.Context(), &nats.Msg{Subject: m.Subject, Header: header, Data: m.Data})
		return err
	})
}

// settled waits until the services have settled all there is.
func (s *storm) settled() {
	s.t.Helper()
	bustest.Eventually(s.t, patience, func() error {
		open, _, err := rest.Open(s.t.Context(), s.bus, payment.Name, inventory.Name)
		if err == nil && open > 0 {
			err = fmt.Errorf("%d events are open", open)
		}
		return err
	})
}
