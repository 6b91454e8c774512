package consumer_test

import (
	"context"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"

	"github.com/farandole/farandole/bustest"
	"github.com/farandole/farandole/consumer"
	"github.com/farandole/farandole/event"
)

// TestEventOnASubjectOfAnotherIsParked: who may publish one type must not be
// able to have another one handled, nor settle an event that he does not own.
func TestEventOnASubjectOfAnotherIsParked(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		eventType event.Type // what the subject says
		key       event.Key
		redrive   bool
		says      string
	}{
		"type":             {"payment.captured.v1", "o-1", false, `type: "order.placed.v1" on subject`},
		"key":              {"order.placed.v1", "o-2", false, `partitionkey: "o-1" on subject`},
		"type, in redrive": {"payment.captured.v1", "o-1", true, `type: "order.placed.v1" on subject`},
		"key, in redrive":  {"order.placed.v1", "o-2", true, `partitionkey: "o-1" on subject`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSystem(t)
			var runs tally
			r := counting(&runs)
			consumer.Handle(r, paid, func(_ context.Context, e event.Event, _ orderData) (consumer.Step, error) {
				runs.add(e.ID())
				return consumer.Step{}, nil
			})
			p := s.start(config(), r, nil)
			e := bustest.Event(t, draft("o-1"))
			m, err := s.bus.Message(e)
			if err != nil {
				t.Fatal(err)
			}
			subject := s.bus.Names().EventSubject(tt.eventType, tt.key)
			if tt.redrive {
				subject = s.bus.Names().RedriveSubject("payment", subject)
			}
			m.Header.Del(nats.MsgIdHdr)
			if _, err := s.bus.JetStream().PublishMsg(t.Context(), &nats.Msg{Subject: subject, Header: m.Header, Data: m.Data}); err != nil {
				t.Fatal(err)
			}
			l := s.letter()
			if l.Reason != event.ReasonDecode || !strings.Contains(l.Error, tt.says) || !strings.Contains(l.Error, subject) {
				t.Errorf("letter says %s: %s; want a decode error that tells %s and %s", l.Reason, l.Error, tt.says, subject)
			}
			if n := runs.of("o-1"); n != 0 {
				t.Errorf("the forged event ran %d times", n)
			}
			// The event itself is not settled by it.
			s.publish(draft("o-1"))
			bustest.Eventually(t, soon, func() bool { return p.Stats().Handled == 1 && runs.of("o-1") == 1 })

			// A replay brings the same message back, and no handler runs.
			s.settled("payment") // the letter is there before its event is marked as parked
			s.replayAll()
			bustest.Eventually(t, soon, func() bool { return p.Stats().Parked == 2 && runs.of("o-1") == 1 })
		})
	}
}
