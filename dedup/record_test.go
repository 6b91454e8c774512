package dedup

import (
	"bytes"
	"encoding/json"
	"errors"
	"reflect"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/farandole/farandole/event"
)

func TestRecord_round_trip(t *testing.T) {
	t.Parallel()
	states := []state{stateClaimed, stateWaiting, stateDone, stateParked, stateDiscarded}
	rapid.Check(t, func(rt *rapid.T) {
		r := record{
			State:   rapid.SampledFrom(states).Draw(rt, "state"),
			By:      rapid.StringMatching(`([A-Z2-7]{10}-[0-9a-z]+)?`).Draw(rt, "by"),
			LeaseMS: rapid.Int64Range(0, 1<<40).Draw(rt, "lease"),
			Replay:  rapid.IntRange(0, 2).Draw(rt, "replay"),
		}
		for range rapid.IntRange(0, 12).Draw(rt, "failures") {
			r = r.failed(&event.Attempt{Number: 1, At: time.Unix(1, 0).UTC(), Error: rapid.String().Draw(rt, "error")})
		}
		data, err := r.encode(nil)
		if err != nil {
			rt.Fatal(err)
		}
		plain, err := json.Marshal(r)
		if err != nil || !bytes.Equal(plain, data) {
			rt.Fatalf("encode wrote %s, json writes %s (%v)", data, plain, err)
		}
		got, err := decodeRecord(data)
		if err != nil || !reflect.DeepEqual(got, r) {
			rt.Fatalf("got %+v, want %+v (%v)", got, r, err)
		}
	})
}

func TestRecord_refuses_what_it_has_not_written(t *testing.T) {
	t.Parallel()
	for _, data := range []string{"", "null", "{}", "[]", "done", `{"state":"gone"}`, `{"state":1}`} {
		if r, err := decodeRecord([]byte(data)); !errors.Is(err, ErrBadMark) {
			t.Errorf("%q: got %+v, %v; want ErrBadMark", data, r, err)
		}
	}
}

// A history that two claims share must not be written by one of them.
func TestRecord_failed_copies(t *testing.T) {
	t.Parallel()
	base := record{State: stateClaimed}
	for range keepAttempts + 3 {
		base = base.failed(&event.Attempt{Error: "base"})
	}
	a := base.failed(&event.Attempt{Error: "a"})
	b := base.failed(&event.Attempt{Error: "b"})
	for i, got := range []record{base, a, b} {
		if len(got.Attempts) != keepAttempts || got.Attempts[keepAttempts-1].Error != []string{"base", "a", "b"}[i] {
			t.Errorf("record %d ends with %q after %d attempts", i, got.Attempts[len(got.Attempts)-1].Error, len(got.Attempts))
		}
	}
}
