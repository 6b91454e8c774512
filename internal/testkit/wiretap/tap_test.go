package wiretap_test

import (
	"errors"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/farandole/farandole/bustest"
	"github.com/farandole/farandole/internal/testkit/wiretap"
)

func TestMain(m *testing.M) { bustest.Main(m) }

// soon is how long a test waits for what has to happen, on a slow machine.
const soon = 60 * time.Second

// client is a connection through a tap, and one beside it that hears what gets through.
func client(t *testing.T, tap *wiretap.Tap) (*nats.Conn, *nats.Subscription) {
	t.Helper()
	dial := func(p nats.InProcessConnProvider) *nats.Conn {
		c, err := nats.Connect("", nats.InProcessServer(p), nats.ReconnectWait(time.Millisecond), nats.MaxReconnects(-1))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(c.Close)
		return c
	}
	beside := dial(bustest.Server(t))
	heard, err := beside.SubscribeSync(t.Name())
	if err == nil {
		err = beside.Flush() // before anything is published
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := heard.SetPendingLimits(-1, -1); err != nil {
		t.Fatal(err)
	}
	tapped := dial(tap)
	return tapped, heard
}

func saysSecond(frame []byte) bool {
	return string(frame[len(frame)-len("second\r\n"):]) == "second\r\n"
}

func TestVerdicts(t *testing.T) {
	t.Parallel()
	for verdict, want := range map[wiretap.Verdict][]string{
		wiretap.Pass:  {"first", "second", "third", "second"},
		wiretap.Drop:  {"first", "third", "second"},
		wiretap.Break: {"first", "third", "second"},
		wiretap.Cut:   {"first"},
	} {
		t.Run(string('0'+rune(verdict)), func(t *testing.T) {
			t.Parallel()
			tap := wiretap.New(bustest.Server(t), wiretap.Nth(1, verdict, func(frame []byte) bool {
				return wiretap.Subject(frame) == t.Name() && saysSecond(frame)
			}), nil)
			c, heard := client(t, tap)
			send := func(data string) {
				if err := c.Publish(t.Name(), []byte(data)); err != nil {
					t.Fatal(err)
				}
				patience := soon
				if verdict == wiretap.Cut { // nobody answers
					patience = time.Second
				}
				err := c.FlushTimeout(patience)
				for err != nil && verdict == wiretap.Break {
					err = c.FlushTimeout(patience)
				}
				if err != nil && verdict != wiretap.Cut {
					t.Fatal(err)
				}
			}
			send("first")
			send("second")
			if verdict != wiretap.Cut {
				send("third")
				send("second")
			}
			for _, data := range want {
				m, err := heard.NextMsg(soon)
				if err != nil || string(m.Data) != data {
					t.Fatalf("heard %v, %v; want %q", m, err, data)
				}
			}
			select {
			case <-tap.IsCut():
				if _, err := tap.InProcessConn(); verdict != wiretap.Cut || err == nil {
					t.Errorf("cut off by verdict %d; next connection: %v", verdict, err)
				}
			default:
				if verdict == wiretap.Cut {
					t.Error("not cut off")
				}
			}
		})
	}
}

// Answers can be lost as well, and frames come in pieces of any size.
func TestReceived(t *testing.T) {
	t.Parallel()
	tap := wiretap.New(bustest.Server(t), nil, wiretap.Nth(2, wiretap.Drop, func(frame []byte) bool {
		return wiretap.Subject(frame) == t.Name()
	}))
	c, _ := client(t, tap)
	sub, err := c.SubscribeSync(t.Name())
	if err != nil {
		t.Fatal(err)
	}
	for size := range 3 {
		if err := c.Publish(t.Name(), make([]byte, 100_000+size)); err != nil {
			t.Fatal(err)
		}
	}
	for _, size := range []int{100_000, 100_002} {
		m, err := sub.NextMsg(soon)
		if err != nil || len(m.Data) != size {
			t.Fatalf("got %d bytes, %v; want %d", len(m.Data), err, size)
		}
	}
	if _, err := sub.NextMsg(time.Millisecond); !errors.Is(err, nats.ErrTimeout) {
		t.Fatalf("got %v, want no more", err)
	}
}
