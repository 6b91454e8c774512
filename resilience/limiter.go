package resilience

import (
	"container/list"
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"

	"github.com/farandole/farandole/internal/backoff"
)

// RateConfig limits how often calls are made. The zero value does not.
type RateConfig struct {
	// PerSecond is the rate of all calls of the guard together. Defaults to 0: no limit.
	PerSecond float64
	// Burst is how many calls may be made at once after a pause. Defaults to the
	// calls of one second, at least 1.
	Burst int
	// KeyPerSecond and KeyBurst are the same for the calls of one key ([WithKey]).
	// Calls without a key share one. Default to 0: no limit.
	KeyPerSecond float64
	KeyBurst     int
	// MaxKeys is how many keys are remembered. The key that was used least recently
	// is forgotten; should it come back, it begins with a full burst. Defaults to 10,000.
	MaxKeys int
	// MaxWait is how long a call may wait for its token. One that would have to wait
	// longer, or longer than its context lasts, is refused at once. Defaults to 0: no
	// call waits.
	MaxWait time.Duration
}

const defaultMaxKeys = 10_000

func (c RateConfig) on() bool { return c.PerSecond > 0 || c.KeyPerSecond > 0 }

func (c RateConfig) withDefaults() RateConfig {
	burst := func(given int, perSecond float64) int {
		if given != 0 || !(perSecond > 0) {
			return given
		}
		return int(math.Ceil(min(perSecond, math.MaxInt32)))
	}
	c.Burst, c.KeyBurst = burst(c.Burst, c.PerSecond), burst(c.KeyBurst, c.KeyPerSecond)
	if c.KeyPerSecond > 0 && c.MaxKeys == 0 {
		c.MaxKeys = defaultMaxKeys
	}
	return c
}

func (c RateConfig) validate() error {
	var errs []error
	bad := func(format string, args ...any) {
		errs = append(errs, fmt.Errorf("%w: Rate: "+format, append([]any{ErrConfig}, args...)...))
	}
	finite := func(r float64) bool { return r >= 0 && !math.IsInf(r, 1) } // false of NaN
	if !finite(c.PerSecond) || !finite(c.KeyPerSecond) {
		bad("PerSecond %v, KeyPerSecond %v: want finite rates from 0 on", c.PerSecond, c.KeyPerSecond)
	}
	if c.Burst < 0 || c.Burst > 0 && c.PerSecond == 0 || c.KeyBurst < 0 || c.KeyBurst > 0 && c.KeyPerSecond == 0 {
		bad("Burst %d, KeyBurst %d: want 1 or more, with PerSecond and KeyPerSecond", c.Burst, c.KeyBurst)
	}
	if c.MaxKeys < 0 || c.MaxKeys > 0 && c.KeyPerSecond == 0 {
		bad("MaxKeys %d: want 1 or more, with KeyPerSecond", c.MaxKeys)
	}
	if c.MaxWait < 0 || c.MaxWait > 0 && !c.on() {
		bad("MaxWait %v: want no negative time, and a rate", c.MaxWait)
	}
	return errors.Join(errs...)
}

type keyOfRate struct{}

// WithKey returns a context whose calls count for a key, such as a tenant, with
// [RateConfig.KeyPerSecond].
func WithKey(ctx context.Context, key string) context.Context {
	return context.WithValue(ctx, keyOfRate{}, key)
}

// limiter gives out tokens, of the guard's bucket and of the key's.
type limiter struct {
	guard   string
	cfg     RateConfig
	all     *rate.Limiter // nil without PerSecond
	waiting atomic.Int64

	mu    sync.Mutex
	share float64
	keys  map[string]*list.Element
	used  *list.List // of keyBucket, the most recently used first
}

type keyBucket struct {
	key    string
	bucket *rate.Limiter
}

func newLimiter(guard string, cfg RateConfig) *limiter {
	l := &limiter{guard: guard, cfg: cfg, share: 1, keys: map[string]*list.Element{}, used: list.New()}
	if cfg.PerSecond > 0 {
		l.all = rate.NewLimiter(rate.Limit(cfg.PerSecond), cfg.Burst)
	}
	return l
}

// wait takes a token of each bucket, or refuses at once. A call that gives up
// while it waits puts them back.
func (l *limiter) wait(ctx context.Context) error {
	now := time.Now()
	var taken []*rate.Reservation
	putBack := func() {
		for _, r := range taken {
			r.CancelAt(now)
		}
	}
	var delay time.Duration
	take := func(bucket *rate.Limiter, key string) error {
		r := bucket.ReserveN(now, 1)
		taken = append(taken, r)
		if delay = max(delay, r.DelayFrom(now)); l.tooLong(ctx, delay) {
			putBack()
			spread := time.Duration(rand.Float64() * float64(delay)) //nolint:gosec // jitter
			return &LimitError{Guard: l.guard, Key: key, RetryAfter: delay + spread}
		}
		return nil
	}
	if l.cfg.KeyPerSecond > 0 {
		key, _ := ctx.Value(keyOfRate{}).(string)
		if err := take(l.bucketOf(key), key); err != nil {
			return err
		}
	}
	if l.all != nil {
		if err := take(l.all, ""); err != nil {
			return err
		}
	}
	if delay == 0 {
		return nil
	}
	l.waiting.Add(1)
	defer l.waiting.Add(-1)
	if !backoff.Wait(ctx, delay) {
		now = time.Now()
		putBack()
		return context.Cause(ctx)
	}
	return nil
}

// tooLong says whether a call may not wait so long.
func (l *limiter) tooLong(ctx context.Context, delay time.Duration) bool {
	if delay > l.cfg.MaxWait {
		return true
	}
	deadline, ok := ctx.Deadline()
	return ok && delay > 0 && time.Until(deadline) < delay
}

// bucketOf finds or makes the bucket of a key.
func (l *limiter) bucketOf(key string) *rate.Limiter {
	l.mu.Lock()
	defer l.mu.Unlock()
	if e, ok := l.keys[key]; ok {
		l.used.MoveToFront(e)
		return e.Value.(keyBucket).bucket
	}
	if l.used.Len() == l.cfg.MaxKeys {
		oldest := l.used.Back()
		delete(l.keys, l.used.Remove(oldest).(keyBucket).key)
	}
	b := keyBucket{key, rate.NewLimiter(l.scaled(l.cfg.KeyPerSecond, l.cfg.KeyBurst))}
	l.keys[key] = l.used.PushFront(b)
	return b.bucket
}

// scaled are rate and burst of this process's share. The caller holds l.mu.
func (l *limiter) scaled(perSecond float64, burst int) (rate.Limit, int) {
	return rate.Limit(perSecond * l.share), max(1, int(math.Ceil(float64(burst)*l.share)))
}

// setShare gives all buckets this part of the configured rates.
func (l *limiter) setShare(share float64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.share = share
	set := func(bucket *rate.Limiter, perSecond float64, burst int) {
		limit, b := l.scaled(perSecond, burst)
		bucket.SetLimit(limit)
		bucket.SetBurst(b)
	}
	if l.all != nil {
		set(l.all, l.cfg.PerSecond, l.cfg.Burst)
	}
	for e := l.used.Front(); e != nil; e = e.Next() {
		set(e.Value.(keyBucket).bucket, l.cfg.KeyPerSecond, l.cfg.KeyBurst)
	}
}

// remembered is how many keys have a bucket.
func (l *limiter) remembered() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.used.Len()
}
