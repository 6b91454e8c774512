package bus_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/bustest"
	"github.com/farandole/farandole/event"
	"github.com/farandole/farandole/internal/testkit/wiretap"
	"github.com/farandole/farandole/topology"
)

// A busy server may need more than a second for its answer: the scan waits, and
// neither takes the silence for the end nor gives up.
func TestScan_slow_server(t *testing.T) {
	t.Parallel()
	server := bustest.Server(t)
	names := event.Names{Prefix: bustest.Prefix()}
	var slow sync.Once
	b := bustest.Provision(t, bustest.Connect(t, bus.Config{Names: names, InProcess: wiretap.New(server, nil, func(frame []byte) wiretap.Verdict {
		if strings.HasPrefix(wiretap.Subject(frame), names.Root("events.")) {
			slow.Do(func() { <-time.After(1500 * time.Millisecond) })
		}
		return wiretap.Pass
	})}), topology.Config{})
	for i := range 3 {
		if _, err := b.JetStream().PublishMsg(t.Context(), message(b, fmt.Sprint("k", i))); err != nil {
			t.Fatal(err)
		}
	}
	var got []string
	err := b.Scan(t.Context(), names.EventsStream(), names.Root("events.>"), func(_ string, _ uint64, data []byte) error {
		got = append(got, string(data))
		return nil
	})
	if err != nil || strings.Join(got, " ") != "k0 k1 k2" {
		t.Errorf("got %v, %v, want k0 k1 k2", got, err)
	}
}
