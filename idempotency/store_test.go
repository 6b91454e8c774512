package idempotency_test

import (
	"errors"
	"fmt"
	"net/http"
	"reflect"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/farandole/farandole/bustest"
	"github.com/farandole/farandole/idempotency"
	"github.com/farandole/farandole/outbox"
)

// claimOf is a claim of a key for an hour.
func claimOf(owner, fingerprint string) idempotency.Claim {
	return idempotency.Claim{Key: "k", Fingerprint: fingerprint, Owner: owner, Lease: time.Hour, TTL: time.Hour}
}

// begins wants a claim to work.
func begins(t *testing.T, s idempotency.Store, c idempotency.Claim) {
	t.Helper()
	if there, err := s.Begin(t.Context(), c); err != nil || there != nil {
		t.Fatalf("%s does not get the key: %+v, %v", c.Owner, there, err)
	}
}

// isTaken wants something to be in the way.
func isTaken(t *testing.T, s idempotency.Store, c idempotency.Claim) *idempotency.Record {
	t.Helper()
	there, err := s.Begin(t.Context(), c)
	if err != nil || there == nil {
		t.Fatalf("%s gets the key: %v", c.Owner, err)
	}
	return there
}

func TestStore_repeats_what_was_stored_to_the_last_bit(t *testing.T) {
	t.Parallel()
	eachStore(t, func(t *testing.T, open backend) {
		t.Helper()
		one, two := open(), open()
		first := claimOf("first", "a")
		begins(t, one, first)
		if there := isTaken(t, two, claimOf("second", "a")); there.Answer != nil || there.Fingerprint != "a" {
			t.Errorf("while it is under way: %+v", there)
		}
		body := make([]byte, 256)
		for i := range body {
			body[i] = byte(i)
		}
		answer := idempotency.Answer{Status: 201, Header: http.Header{"X-A": {"1", "\u00e9"}}, Body: body}
		must(t, one.Complete(t.Context(), first, answer))
		for _, fingerprint := range []string{"a", "b"} {
			there := isTaken(t, two, claimOf("third", fingerprint))
			if there.Fingerprint != "a" || there.Answer == nil || !reflect.DeepEqual(*there.Answer, answer) {
				t.Errorf("%+v", there)
			}
		}
		if err := one.Complete(t.Context(), first, answer); !errors.Is(err, idempotency.ErrLost) {
			t.Errorf("a second answer: %v", err)
		}
		if err := one.Release(t.Context(), first); !errors.Is(err, idempotency.ErrLost) {
			t.Errorf("release of an answer: %v", err)
		}
	})
}

func TestStore_frees_a_key_that_is_released(t *testing.T) {
	t.Parallel()
	eachStore(t, func(t *testing.T, open backend) {
		t.Helper()
		s := open()
		first := claimOf("first", "a")
		begins(t, s, first)
		must(t, s.Release(t.Context(), first))
		if err := s.Complete(t.Context(), first, idempotency.Answer{Status: 200}); !errors.Is(err, idempotency.ErrLost) {
			t.Errorf("an answer after the release: %v", err)
		}
		begins(t, s, claimOf("second", "b"))
		if err := s.Release(t.Context(), first); !errors.Is(err, idempotency.ErrLost) {
			t.Errorf("release of another's: %v", err)
		}
	})
}

func TestStore_gives_a_key_whose_lease_is_over_to_the_same_request_alone(t *testing.T) {
	t.Parallel()
	eachStore(t, func(t *testing.T, open backend) {
		t.Helper()
		one, two := open(), open()
		first := claimOf("first", "a")
		first.Lease = time.Millisecond
		begins(t, one, first)
		bustest.Eventually(t, patience, func() error {
			there, err := two.Begin(t.Context(), claimOf("second", "a"))
			if there != nil {
				err = errors.New("the lease of first is not over")
			}
			return err
		})
		if there := isTaken(t, two, claimOf("other", "b")); there.Fingerprint != "a" || there.Owner != "second" {
			t.Errorf("%+v", there)
		}
		if err := one.Complete(t.Context(), first, idempotency.Answer{Status: 200}); !errors.Is(err, idempotency.ErrLost) {
			t.Errorf("the answer of who has lost the key: %v", err)
		}
		if err := one.Release(t.Context(), first); !errors.Is(err, idempotency.ErrLost) {
			t.Errorf("its release: %v", err)
		}
		must(t, two.Complete(t.Context(), claimOf("second", "a"), idempotency.Answer{Status: 202}))
		if there := isTaken(t, one, claimOf("third", "a")); there.Answer == nil || there.Answer.Status != 202 {
			t.Errorf("%+v", there)
		}
	})
}

// Nobody else may use the key of a request that died.
func TestStore_keeps_a_key_from_others_after_its_lease(t *testing.T) {
	t.Parallel()
	eachStore(t, func(t *testing.T, open backend) {
		t.Helper()
		s := open()
		first := claimOf("first", "a")
		first.Lease = 0
		begins(t, s, first)
		if there := isTaken(t, s, claimOf("other", "b")); there.Fingerprint != "a" || there.Answer != nil {
			t.Errorf("%+v", there)
		}
		begins(t, s, claimOf("second", "a"))
	})
}

func TestStore_forgets_a_key_after_its_time(t *testing.T) {
	t.Parallel()
	eachStore(t, func(t *testing.T, open backend) {
		t.Helper()
		s := open()
		answered, died := claimOf("first", "a"), claimOf("second", "a")
		answered.TTL, died.TTL = time.Second, time.Second
		died.Key = "k2"
		begins(t, s, answered)
		begins(t, s, died)
		must(t, s.Complete(t.Context(), answered, idempotency.Answer{Status: 200}))
		for _, key := range []string{"k", "k2"} {
			other := claimOf("other", "b")
			other.Key = key
			bustest.Eventually(t, patience, func() error {
				there, err := s.Begin(t.Context(), other)
				if there != nil {
					err = fmt.Errorf("%s is not forgotten", key)
				}
				return err
			})
		}
	})
}

func TestStore_gives_a_key_to_one_of_many(t *testing.T) {
	t.Parallel()
	eachStore(t, func(t *testing.T, open backend) {
		t.Helper()
		stores := []idempotency.Store{open(), open()}
		var all sync.WaitGroup
		var won atomic.Int32
		for i := range 40 {
			all.Go(func() {
				there, err := stores[i%2].Begin(t.Context(), claimOf(fmt.Sprint(i), "a"))
				if err != nil {
					t.Error(err)
				}
				if there == nil {
					won.Add(1)
				}
			})
		}
		all.Wait()
		if n := won.Load(); n != 1 {
			t.Errorf("%d have the key", n)
		}
	})
}

func TestSQL_removes_what_is_forgotten(t *testing.T) {
	t.Parallel()
	db, s := openSQL(t, t.TempDir()+"/a.db")
	for i := range 3 {
		c := claimOf("first", "a")
		c.Key, c.TTL = fmt.Sprint(i), 0
		begins(t, s, c)
	}
	restarted, err := idempotency.NewSQL(db, outbox.SQLite)
	must(t, err)
	begins(t, restarted, claimOf("second", "a"))
	var n int
	must(t, db.QueryRowContext(t.Context(), `SELECT count(*) FROM idempotency`).Scan(&n))
	if n != 1 {
		t.Errorf("%d rows", n)
	}
}

func TestStores_say_what_is_wrong(t *testing.T) {
	t.Parallel()
	if _, err := idempotency.NewSQL(nil, 1); !errors.Is(err, idempotency.ErrConfig) {
		t.Error(err)
	}
	db, s := openSQL(t, t.TempDir()+"/a.db")
	if _, err := idempotency.NewSQL(db, 7); !errors.Is(err, idempotency.ErrConfig) {
		t.Error(err)
	}
	must(t, db.Close())
	if there, err := s.Begin(t.Context(), claimOf("first", "a")); err == nil {
		t.Errorf("a closed database: %+v", there)
	}
	if _, err := idempotency.OpenKV(t.Context(), bustest.NewBus(t), "nowhere"); err == nil {
		t.Error("a bucket that does not exist was opened")
	}
}
