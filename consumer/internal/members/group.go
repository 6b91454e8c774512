package members

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/event"
	"github.com/farandole/farandole/internal/backoff"
	"github.com/farandole/farandole/internal/health"
)

const (
	// tryAgain is the time between two tries, about.
	tryAgain = 500 * time.Millisecond
	// fade is longer than the time between two reports of one trouble.
	fade = 30 * time.Second
)

// The parts of a member's work, as [Group.Err] names them.
const (
	partRenew  = "renew"
	partWatch  = "watch"
	partBucket = "bucket" // it does not exist, which both of them meet
)

// Config says whose members they are. All fields but ID and Logger are required.
type Config struct {
	Bus      *bus.Bus
	Consumer event.Consumer
	// ID of this member, [A-Za-z0-9_-]+, which nobody else has. Defaults to a random one.
	ID string
	// Partitions is how many there are.
	Partitions int
	// Logger defaults to silence.
	Logger zerolog.Logger
}

// Group is one member's place among the members of its consumer. It is safe for
// concurrent use.
type Group struct {
	cfg      Config
	self     Member
	log      zerolog.Logger
	troubles *health.Troubles
	changed  chan struct{}
	view     atomic.Pointer[View]
	leaving  atomic.Bool

	writing   chan struct{} // holds an element while the own key is written
	phase     phase         // guarded by writing
	announced chan struct{} // closed when the own key is stored for the first time
	overdue   chan struct{} // asks for a renewal at once

	mu      sync.Mutex
	roster  roster // the others
	unheard int    // renewals that the watch has not told of
	rewatch context.CancelCauseFunc
}

// New does no I/O; see [Group.Run].
func New(cfg Config) *Group {
	if cfg.ID == "" {
		cfg.ID = strings.ToLower(rand.Text()[:12])
	}
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	g := &Group{
		cfg:       cfg,
		self:      Member{ID: cfg.ID, Host: host, Since: time.Now().UTC().Truncate(time.Millisecond)},
		log:       cfg.Logger.With().Str("member", cfg.ID).Logger(),
		troubles:  health.New(fade),
		changed:   make(chan struct{}, 1),
		writing:   make(chan struct{}, 1),
		announced: make(chan struct{}),
		overdue:   make(chan struct{}, 1),
		roster:    roster{entries: map[string]entry{}},
		rewatch:   func(error) {},
	}
	g.view.Store(&View{})
	return g
}

// ID of this member.
func (g *Group) ID() string { return g.cfg.ID }

// View is what this member knows now. While it cannot follow the others that is
// what it knew last.
func (g *Group) View() View { return *g.view.Load() }

// Changed signals that [Group.View] may say something else. It holds one signal.
func (g *Group) Changed() <-chan struct{} { return g.changed }

// Err is what keeps this member from being seen, or from seeing others; nil if
// nothing does. It turns nil again by itself.
func (g *Group) Err() error { return errors.Join(g.troubles.Errors(time.Now())...) }

// Run announces this member, renews that every second and follows the others
// until ctx ends; then the member is gone at once. What goes wrong meanwhile is
// logged, told by [Group.Err], and tried again. It returns an error only for a
// Config.ID that is none, or one that matches [bus.ErrClosed] when the bus is closed
// before ctx ends. It runs once.
func (g *Group) Run(ctx context.Context) error {
	if event.EscapeKey(event.Key(g.cfg.ID)) != g.cfg.ID {
		return fmt.Errorf("members: id %q: want [A-Za-z0-9_-]+", g.cfg.ID)
	}
	g.begin()
	live, end := context.WithCancelCause(ctx)
	defer end(nil)
	var all sync.WaitGroup
	all.Go(func() { end(g.keep(live, partRenew, g.renew)) })
	all.Go(func() { end(g.keep(live, partWatch, g.watch)) })
	all.Wait()
	if ctx.Err() == nil {
		return fmt.Errorf("members: %w", context.Cause(live))
	}
	g.quit(ctx)
	return nil
}

// Leave takes this member out of the balance: the others get its partitions. It
// stays among the members, so that they can wait for what it finishes, until Run
// has ended. Errors are those of [bus.Pending.Wait]; after one the member's next
// renewal says that it leaves.
func (g *Group) Leave(ctx context.Context) error {
	g.leaving.Store(true)
	g.mu.Lock()
	if g.View().Known {
		g.settle()
	}
	g.mu.Unlock()
	if err := g.write(ctx); err != nil {
		return fmt.Errorf("members: leave: %w", advise(err))
	}
	return nil
}

// me is what this member tells of itself.
func (g *Group) me() Member {
	m := g.self
	m.Leaving = g.leaving.Load()
	return m
}

// settle makes what is known count. The caller holds g.mu.
func (g *Group) settle() {
	view := viewOf(g.roster.members(g.me()), g.cfg.ID, g.cfg.Partitions)
	if view.same(g.View()) {
		return
	}
	g.view.Store(&view)
	select {
	case g.changed <- struct{}{}:
	default:
	}
	g.log.Info().Int("members", len(view.Members)).Int("own", len(view.Own)).Msg("members of the consumer have changed")
}

// keep repeats work until ctx ends, and tells what keeps it from being done. It
// returns an error that no repetition mends.
func (g *Group) keep(ctx context.Context, part string, work func(context.Context) error) error {
	for {
		err := work(ctx)
		switch {
		case ctx.Err() != nil: // that is why
		case errors.Is(err, bus.ErrClosed):
			return err
		case errors.Is(err, bus.ErrNoStream):
			g.fail(partBucket, advise(err))
		default:
			g.fail(part, err)
		}
		if !backoff.Wait(ctx, backoff.Around(tryAgain)) {
			return nil
		}
	}
}

func (g *Group) fail(part string, err error) {
	if g.troubles.Set(part, err) {
		g.log.Warn().Err(err).Str("part", part).Msg("cannot keep up with the members of the consumer: this process goes on with those it knows")
	}
}

// mend takes note that a part works.
func (g *Group) mend(part string) {
	for _, p := range []string{part, partBucket} {
		if g.troubles.Has(p) {
			g.log.Info().Str("part", p).Msg("keeps up with the members of the consumer again")
		}
		g.troubles.Clear(p)
	}
}
