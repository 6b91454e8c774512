package hopbench_test

import (
	"errors"
	"testing"

	"github.com/farandole/farandole/event"
	"github.com/farandole/farandole/internal/hopbench"
)

// Verify finds each way in which outgoing events can be wrong.
func TestVerify(t *testing.T) {
	t.Parallel()
	out := func(i int, id string) event.Draft {
		d := hopbench.Out.New(hopbench.KeyOf(i), hopbench.Data{})
		d.ID = id
		return d
	}
	for _, tt := range []struct {
		name   string
		stored []event.Draft
		ok     bool
	}{
		{"each once", []event.Draft{out(0, "a"), out(1, "b")}, true},
		{"one is missing", []event.Draft{out(0, "a")}, false},
		{"one twice", []event.Draft{out(0, "a"), out(1, "b"), out(1, "c")}, false},
		{"one twice instead of another", []event.Draft{out(1, "b"), out(1, "c")}, false},
		{"one that nothing has caused", []event.Draft{out(0, "a"), out(1, "b"), out(2, "c")}, false},
		{"another one instead", []event.Draft{out(0, "a"), out(2, "c")}, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			s, err := hopbench.Open(t.Context(), connect(t), hopbench.Prefix(), 1)
			if err != nil {
				t.Fatal(err)
			}
			defer func() {
				if err := s.Close(t.Context()); err != nil {
					t.Error(err)
				}
			}()
			for _, d := range tt.stored {
				e, err := s.Bus.Seal(d)
				if err != nil {
					t.Fatal(err)
				}
				if _, err := s.Bus.Publish(t.Context(), e); err != nil {
					t.Fatal(err)
				}
			}
			if err := s.Verify(t.Context(), 2); tt.ok && err != nil || !tt.ok && !errors.Is(err, hopbench.ErrUnverified) {
				t.Errorf("error %v", err)
			}
		})
	}
}

func TestDraft_has_the_size_it_says(t *testing.T) {
	t.Parallel()
	for _, i := range []int{0, 1, 9_999, 1_000_000} {
		if d := hopbench.Draft(i); len(d.Data) != hopbench.DataBytes {
			t.Errorf("event %d: %d bytes", i, len(d.Data))
		}
	}
}
