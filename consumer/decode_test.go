package consumer_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/farandole/farandole/bustest"
	"github.com/farandole/farandole/consumer"
	"github.com/farandole/farandole/dedup"
	"github.com/farandole/farandole/dedup/deduptest"
	"github.com/farandole/farandole/event"
	"github.com/farandole/farandole/topology"
)

// wire is a message as a foreign producer writes it.
type wire struct {
	header nats.Header
	body   string
}

// binary has the attributes of a legal event, changed by edits: pairs of
// header and value; an empty value removes the header.
func binary(edits ...string) wire {
	h := nats.Header{
		"ce-specversion": {"1.0"}, "ce-id": {"A"}, "ce-source": {"/shop"}, "ce-type": {"order.placed.v1"},
	}
	for i := 0; i < len(edits); i += 2 {
		if edits[i+1] == "" {
			delete(h, edits[i])
		} else {
			h[edits[i]] = append(h[edits[i]][:0:0], edits[i+1])
		}
	}
	return wire{h, `{"amount":1}`}
}

const envelope = `{"specversion":"1.0","id":"A","source":"/shop","type":"order.placed.v1","datacontenttype":"application/json","data":{"amount":1}}`

func structured(body string) wire {
	return wire{nats.Header{"Content-Type": {"application/cloudevents+json"}}, body}
}

// envelopeWith replaces a part of the envelope.
func envelopeWith(from, to string) wire { return structured(strings.Replace(envelope, from, to, 1)) }

// foreign is a message that others wrote, and what has to become of it.
type foreign struct {
	message wire
	refused string // what the letter says; "" when the event is handled
	check   func(t *testing.T, e event.Event)
}

func TestPercent_encoding_is_decoded_once_or_refused(t *testing.T) {
	t.Parallel()
	inject(t, map[string]foreign{
		"double encoding": {binary("ce-subject", "100%2525"), "", wantSubject("100%25")},
		"not UTF-8":       {binary("ce-subject", "%FF"), "subject", nil},
		"overlong":        {binary("ce-subject", "%C0%AF"), "subject", nil},
		"surrogate":       {binary("ce-subject", "%ED%A0%80"), "subject", nil},
		"truncated":       {binary("ce-subject", "%4"), "", wantSubject("%4")},
		"not hex":         {binary("ce-subject", "%zz"), "", wantSubject("%zz")},
		"line end":        {binary("ce-subject", "%0D%0ANats-Msg-Id:%20x"), "subject", nil},
	})
}

func TestEvery_way_to_say_the_mode(t *testing.T) {
	t.Parallel()
	inject(t, map[string]foreign{
		"structured":           {wire{nats.Header{"Content-Type": {"application/cloudevents+json; charset=UTF-8"}}, envelope}, "", nil},
		"structured, odd case": {wire{nats.Header{"content-type": {"APPLICATION/CLOUDEVENTS+JSON"}}, envelope}, "", nil},
		"binary":               {binary("ce-datacontenttype", "application/json"), "", nil},
		"binary, content-type": {binary("content-type", "application/json"), "", nil},
		"stray id":             {wire{nats.Header{"Content-Type": {"application/cloudevents+json"}, "ce-id": {"WRONG"}}, envelope}, "", nil},
		"no headers":           {wire{nil, envelope}, "", nil},
		"nothing":              {wire{nil, "hello"}, "not a CloudEvent", nil},
	})
}

func TestBatches_are_refused_whole(t *testing.T) {
	t.Parallel()
	inject(t, map[string]foreign{
		"batch": {
			wire{nats.Header{"Content-Type": {"application/cloudevents-batch+json"}}, "[" + envelope + "," + envelope + "]"},
			"batch is not supported", nil,
		},
		"array":       {structured("[" + envelope + "]"), "batch is not supported", nil},
		"empty array": {structured("[]"), "batch is not supported", nil},
	})
}

func TestIllegal_extension_names_are_ignored(t *testing.T) {
	t.Parallel()
	inject(t, map[string]foreign{
		"illegal name, binary":     {binary("ce-fc-code-checksum", "x"), "", nil},
		"illegal name, structured": {envelopeWith(`"id"`, `"fc-code-checksum":"x","id"`), "", nil},
	})
}

func TestHeader_case_and_repeats(t *testing.T) {
	t.Parallel()
	inject(t, map[string]foreign{
		"upper case":          {binary("ce-id", "", "CE-ID", "A"), "", nil},
		"ambiguous":           {binary("Ce-Id", "B"), "id: repeated", nil},
		"repeated, different": {repeated("ce-id", "A", "B"), "id: repeated", nil},
		"repeated, the same":  {repeated("ce-id", "A", "A"), "", nil},
	})
}

func TestTimes_are_legal_or_refused(t *testing.T) {
	t.Parallel()
	inject(t, map[string]foreign{
		"nanoseconds, offset": {binary("ce-time", "2026-03-01T10:00:00.123456789+05:30"), "", wantTime("2026-03-01T10:00:00.123456789+05:30")},
		"lower case":          {binary("ce-time", "2026-03-01t10:00:00z"), "", wantTime("2026-03-01T10:00:00Z")},
		"space":               {binary("ce-time", "2026-03-01 10:00:00Z"), "time", nil},
		"no zone":             {binary("ce-time", "2026-03-01T10:00:00"), "time", nil},
		"GMT":                 {binary("ce-time", "2026-03-01T10:00:00GMT"), "time", nil},
		"expiry, no zone":     {binary("ce-expirytime", "2026-03-01T10:00:00"), "expirytime: not an RFC 3339 time", nil},
		"expiry, one digit":   {binary("ce-expirytime", "2026-03-01T1:00:00Z"), "expirytime: not an RFC 3339 time", nil},
		"expiry, a number":    {envelopeWith(`"id"`, `"expirytime":1719999999,"id"`), "expirytime: want a string", nil},
		"30 February":         {binary("ce-time", "2026-02-30T00:00:00Z"), "time", nil},
		"seconds":             {binary("ce-time", "1719999999"), "time", nil},
		"empty":               {repeated("ce-time", ""), "time", nil},
	})
}

func TestDamaged_bodies(t *testing.T) {
	t.Parallel()
	deep := strings.Repeat("[", 10000) + strings.Repeat("]", 10000)
	inject(t, map[string]foreign{
		"not UTF-8":       {envelopeWith(`"A"`, "\"A\xff\""), "UTF-8", nil},
		"byte order mark": {structured("\xef\xbb\xbf" + envelope), "body", nil},
		"NUL":             {envelopeWith(`"id"`, `"subject":"a\u0000b","id"`), "subject", nil},
		"repeated member": {envelopeWith(`"id":"A"`, `"id":"A","id":"B"`), "repeated", nil},
		"deep nesting":    {structured(deep), "body", nil},
		"deep data":       {envelopeWith(`{"amount":1}`, deep), "body", nil},
	})
}

func TestMessagesThatAreNoEvents(t *testing.T) {
	t.Parallel()
	inject(t, map[string]foreign{
		"no id":                 {binary("ce-id", ""), "id: missing", nil},
		"order A and order B":   {wire{binary().header, `{"amount":1,"amount":2}`}, `duplicate object member name "amount"`, nil},
		"type of another shape": {binary("ce-type", "com.example.someevent"), `type: "com.example.someevent"`, nil},
	})
}

// repeated is a legal binary message with these values of one header.
func repeated(name string, values ...string) wire {
	w := binary()
	w.header[name] = values
	return w
}

// inject stores each message for a consumer of its own: it is handled as the
// event it means, or becomes exactly one dead letter that says why.
func inject(t *testing.T, messages map[string]foreign) {
	t.Helper()
	for name, tt := range messages {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSystem(t)
			seen := make(chan event.Event, 16)
			p := s.start(config(), handling(func(_ context.Context, e event.Event) (consumer.Step, error) {
				seen <- e
				return consumer.Step{}, nil
			}), nil)
			sequence := s.inject(tt.message.header, tt.message.body)
			bustest.Eventually(t, soon, func() bool { st := p.Stats(); return st.Handled+st.Parked > 0 })
			s.settled("payment")
			if st := p.Stats(); st.Retried+st.Released+st.Duplicate > 0 {
				t.Errorf("stats = %+v, want one delivery", st)
			}
			if tt.refused == "" {
				if len(s.letters()) != 0 {
					t.Fatalf("dead-lettered: %s", s.letter().Error)
				}
				e := <-seen
				if e.ID() != "A" || e.Source() != "/shop" || string(e.Data()) != `{"amount":1}` {
					t.Errorf("the handler saw\n%s", e)
				}
				if tt.check != nil {
					tt.check(t, e)
				}
				return
			}
			l := s.letter()
			if l.Reason != event.ReasonDecode || l.Class == "" || !strings.Contains(l.Error, tt.refused) {
				t.Errorf("letter says %s, class %s: %s; want a decode error about %s", l.Reason, l.Class, l.Error, tt.refused)
			}
			if string(l.Data) != tt.message.body {
				t.Errorf("letter has %d bytes of data, want the message's %d unchanged", len(l.Data), len(tt.message.body))
			}
			if l.Origin.Sequence != sequence || len(seen) > 0 {
				t.Errorf("letter is of message %d, want %d; %d handler runs, want none", l.Origin.Sequence, sequence, len(seen))
			}
		})
	}
}

func wantSubject(want string) func(*testing.T, event.Event) {
	return func(t *testing.T, e event.Event) {
		t.Helper()
		if e.Subject() != want {
			t.Errorf("subject is %q, want %q", e.Subject(), want)
		}
	}
}

func wantTime(want string) func(*testing.T, event.Event) {
	return func(t *testing.T, e event.Event) {
		t.Helper()
		at, err := time.Parse(time.RFC3339Nano, want)
		if err != nil {
			t.Fatal(err)
		}
		_, offset := at.Zone()
		_, got := e.Time().Zone()
		if !e.Time().Equal(at) || got != offset {
			t.Errorf("time is %v, want %v", e.Time(), at)
		}
	}
}

func TestTime_keeps_offset_and_nanoseconds_through_a_replay(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	var runs tally
	seen := make(chan event.Event, 16)
	s.start(config(), handling(func(_ context.Context, e event.Event) (consumer.Step, error) {
		seen <- e
		if runs.add(e.ID()) == 1 {
			return consumer.Step{}, consumer.Permanent(errFlaky)
		}
		return consumer.Step{}, nil
	}), nil)
	at := "2026-03-01T10:00:00.123456789+05:30"
	w := binary("ce-time", at)
	s.inject(w.header, w.body)
	s.letter()
	s.replayAll()
	for range 2 {
		wantTime(at)(t, <-seen)
	}
}

// TestMessage_without_id_is_one_letter_however_often_it_comes: its identity
// is its place in the stream, which redeliveries share.
func TestMessage_without_id_is_one_letter_however_often_it_comes(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	w := binary("ce-id", "")
	sequence := s.inject(w.header, w.body)
	var faulty *deduptest.FaultyLedger
	p := s.start(config(), counting(new(tally)), func(_ *process, l dedup.Ledger) dedup.Ledger {
		faulty = deduptest.Faulty(l,
			deduptest.Fault{Method: deduptest.Claim, Call: 1, When: deduptest.Before},
			deduptest.Fault{Method: deduptest.Claim, Call: 2, When: deduptest.Before},
			deduptest.Fault{Method: deduptest.Claim, Call: 3, When: deduptest.Before})
		return faulty
	})
	bustest.Eventually(t, soon, func() bool { return p.Stats().Released == 3 })
	l := s.letter()
	s.settled("payment")
	key := event.EventKeyAt(s.bus.Names().EventsStream(), sequence, l.Origin.Time)
	if l.EventKey != key || l.EventID != "" || l.Origin.Sequence != sequence {
		t.Errorf("letter is of key %s, id %q, message %d; want %s, none, %d", l.EventKey, l.EventID, l.Origin.Sequence, key, sequence)
	}
	if m := s.mark("payment", key); m.State != "parked" {
		t.Errorf("mark is %s, want parked", m.State)
	}
}

// TestUndecodableMessageOfAStreamMadeAnew: it has the sequence of one that was
// parked before, and the ledger remembers that one.
func TestUndecodableMessageOfAStreamMadeAnew(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	p := s.start(config(), counting(new(tally)), nil)
	sequence := s.inject(nil, "not an event")
	s.letter()
	s.settled("payment")
	if err := s.bus.JetStream().DeleteStream(t.Context(), s.bus.Names().EventsStream()); err != nil {
		t.Fatal(err)
	}
	if _, err := topology.Provision(t.Context(), s.bus, topology.New(s.bus.Names(), topology.Config{})); err != nil {
		t.Fatal(err)
	}
	if again := s.inject(nil, "not an event either"); again != sequence {
		t.Fatalf("it has the sequence %d, want %d again", again, sequence)
	}
	bustest.Eventually(t, soon, func() bool { return p.Stats().Parked+p.Stats().Duplicate == 2 })
	if letters := s.letters(); len(letters) != 2 {
		t.Errorf("%d letters of two messages", len(letters))
	}
}

// TestUndecodableMessageIsReplayedUnderItsOwnName: the redrive is stored
// elsewhere and yet the same event.
func TestUndecodableMessageIsReplayedUnderItsOwnName(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	p := s.start(config(), counting(new(tally)), nil)
	s.inject(nil, "not an event")
	first := s.letter()
	s.settled("payment") // the letter is there before its event is marked as parked
	s.replayAll()
	bustest.Eventually(t, soon, func() bool { return p.Stats().Parked == 2 })
	s.settled("payment")
	if l := s.letter(); l.EventKey != first.EventKey || l.Count != 2 || string(l.Data) != "not an event" {
		t.Errorf("letter is of %s, parked %d times; want %s, twice", l.EventKey, l.Count, first.EventKey)
	}
}

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
			subject := s.storedOn(tt.eventType, tt.key)
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
