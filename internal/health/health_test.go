package health_test

import (
	"errors"
	"fmt"
	"io"
	"testing"
	"testing/synctest"
	"time"

	"github.com/farandole/farandole/internal/health"
)

const fade = time.Minute

func errOf(t *health.Troubles) error { return errors.Join(t.Errors(time.Now())...) }

func TestATroubleLastsUntilItIsCleared(t *testing.T) {
	t.Parallel()
	h := health.New(fade)
	if !h.Set("publish", io.EOF) || h.Set("publish", io.ErrClosedPipe) || !h.Set("ledger", io.ErrUnexpectedEOF) {
		t.Error("what is new is not told from what is known")
	}
	if err := errOf(h); err == nil || err.Error() != "ledger: unexpected EOF\npublish: io: read/write on closed pipe" {
		t.Errorf("err = %v, want the latest of both parts", err)
	}
	h.Clear("ledger")
	if err := errOf(h); !errors.Is(err, io.ErrClosedPipe) || errors.Is(err, io.ErrUnexpectedEOF) || h.Has("ledger") {
		t.Errorf("err = %v, want what is left", err)
	}
	h.Clear("publish")
	if err := errOf(h); err != nil || h.Has("publish") {
		t.Errorf("err = %v after everything was cleared", err)
	}
}

func TestATroubleFadesUnlessReportedAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := health.New(fade)
		h.Set("publish", io.EOF)
		<-time.After(fade / 2)
		h.Set("publish", io.EOF)
		<-time.After(fade - 1)
		if err := errOf(h); err == nil {
			t.Error("faded although it was reported again")
		}
		<-time.After(1)
		if err := errOf(h); err != nil || !h.Has("publish") {
			t.Errorf("err = %v after the fade, has %v", err, h.Has("publish"))
		}
		if !h.Set("publish", io.EOF) {
			t.Error("a trouble that comes back after its fade is not new")
		}
	})
}

func TestMorePartsThanAreKept(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := health.New(fade)
		for range 2 {
			for i := range 1000 {
				h.Set(fmt.Sprintf("part %d", i), io.EOF)
			}
			if n := len(h.Errors(time.Now())); n != 64 {
				t.Errorf("%d parts are kept, want 64", n)
			}
			<-time.After(fade) // makes room
		}
	})
}
