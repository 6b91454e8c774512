package payment

import (
	"encoding/json"
	"reflect"
	"testing"

	"github.com/farandole/farandole/event"
	"github.com/farandole/farandole/services/events"
)

// A rerun gets what the first run returned, to the last byte, also after the
// state has been stored and read.
func TestEmittedEventsAreRemembered(t *testing.T) {
	t.Parallel()
	cause := sealed(t, "e1")
	want := []event.Draft{
		events.PaymentDeclined.New("ord-1", events.Declined{OrderID: "ord-1", Reason: `<"no" & €\u2028>` + "\u2028\x01"}),
		events.OrderCancelled.New("ord-1", events.Cancelled{OrderID: "ord-1"}),
	}
	var none Emitted
	if drafts, known := none.For(cause); known || drafts != nil {
		t.Fatalf("nothing happened yet: %v", drafts)
	}
	once := none.With(cause, want)
	twice := once.With(sealed(t, "e2"), nil)
	if len(none) != 0 || len(once) != 1 || len(twice) != 2 {
		t.Fatalf("With changed its receiver: %d, %d, %d", len(none), len(once), len(twice))
	}
	data, err := json.Marshal(twice)
	if err != nil {
		t.Fatal(err)
	}
	var stored Emitted
	if err := json.Unmarshal(data, &stored); err != nil {
		t.Fatal(err)
	}
	for name, s := range map[string]Emitted{"kept": twice, "stored": stored} {
		if got, known := s.For(cause); !known || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %v, want %v", name, got, want)
		}
		if got, known := s.For(sealed(t, "e2")); !known || len(got) != 0 {
			t.Errorf("%s: an event that led to nothing: %v, %v", name, got, known)
		}
		if _, known := s.For(sealed(t, "e3")); known {
			t.Errorf("%s: an event that was never seen is known", name)
		}
	}
}

func sealed(t *testing.T, id string) event.Event {
	t.Helper()
	e, err := events.OrderPlaced.New("ord-1", events.Placed{OrderID: "ord-1"}).Seal(event.Identity{ID: id, Source: "/test"})
	if err != nil {
		t.Fatal(err)
	}
	return e
}
