package consumer_test

import (
	"context"
	"encoding/json"
	"errors"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/farandole/farandole/bustest"
	"github.com/farandole/farandole/consumer"
	"github.com/farandole/farandole/dlq"
	"github.com/farandole/farandole/event"
)

// pull is what the test reads of a pull request.
type pull struct {
	Action string `json:"action"`
	Number int    `json:"number"`
}

const (
	typePull = "com.github.pull.create"
	typeBlob = "Microsoft.Storage.BlobCreated"
	typePush = "com.github.push"
)

// hub is a stream of others with events as GitHub and Azure write them.
type hub struct {
	*system
	name, root string
}

func newHub(t *testing.T) hub {
	t.Helper()
	s := newSystem(t)
	h := hub{s, s.bus.Names().Prefix + "-HUB", s.bus.Names().Root("hub.")}
	js := s.bus.JetStream()
	if _, err := js.CreateStream(t.Context(), foreignStream(h.name, h.root)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := js.DeleteStream(context.Background(), h.name); err != nil {
			t.Error(err)
		}
	})
	return h
}

func (h hub) config() consumer.Config {
	cfg := config()
	cfg.From = &consumer.Stream{Name: h.name, Subjects: []string{h.root + ">"}}
	return cfg
}

func (h hub) store(subject string, header nats.Header, data string) {
	h.tb.Helper()
	if _, err := h.bus.JetStream().PublishMsg(h.tb.Context(), &nats.Msg{Subject: h.root + subject, Header: header, Data: []byte(data)}); err != nil {
		h.tb.Fatal(err)
	}
}

// github stores a binary-mode event of a repository.
func (h hub) github(eventType, id, data string) {
	h.tb.Helper()
	h.store("github.octo.hello-world", nats.Header{
		"ce-specversion": {"1.0"}, "ce-id": {id}, "ce-source": {"https://github.com/octo/hello-world"}, "ce-type": {eventType},
		"ce-time": {"2026-04-05T17:31:00Z"}, "ce-datacontenttype": {"application/json"},
	}, data)
}

// azure stores a structured-mode event of a storage account.
func (h hub) azure(id string) {
	h.tb.Helper()
	h.store("azure", nats.Header{"Content-Type": {"application/cloudevents+json; charset=utf-8"}}, `{"specversion":"1.0","type":"`+typeBlob+`",
		"source":"/subscriptions/1/resourceGroups/Storage/providers/Microsoft.Storage/storageAccounts/acme","id":"`+id+`",
		"time":"2026-04-05T17:31:00Z","subject":"blobServices/default/containers/c/blobs/f","data":{"api":"PutBlockList","contentLength":447}}`)
}

func TestForeignTypes_are_handled_by_their_exact_names(t *testing.T) {
	t.Parallel()
	h := newHub(t)
	var runs tally
	r := consumer.NewRegistry()
	consumer.Handle(r, event.Define[pull](typePull), func(_ context.Context, e event.Event, data pull) (consumer.Step, error) {
		if runs.add(e.ID()) == 1 && data.Number == 7 { // a long retry
			return consumer.Step{}, consumer.RetryAfter(errors.New("not now"), 1100*time.Millisecond)
		}
		return consumer.Emit(paid.New("pull", orderData{Amount: int64(data.Number)})), nil
	})
	consumer.HandleEvent(r, typeBlob, func(_ context.Context, e event.Event) (consumer.Step, error) {
		if runs.add(e.ID()) == 1 {
			return consumer.Step{}, consumer.Permanent(errors.New("no such container"))
		}
		return consumer.Step{}, nil
	})
	cfg := h.config()
	cfg.Retry.DeferAfter = time.Second
	h.github(typePull, "A234-1", `{"action":"opened","number":123,"pull_request":{"draft":false}}`)
	h.github(typePull, "A234-1", `{"action":"opened","number":123,"pull_request":{"draft":false}}`) // delivered twice
	h.github(typePull, "A234-2", `{"action":"opened","number":7}`)
	h.github(typePull, "A234-3", `{"action":"opened","number":1,"number":2}`)
	h.azure("blob-1")
	p := h.start(cfg, r, nil)
	bustest.Eventually(t, soon, func() bool { st := p.Stats(); return st.Handled == 2 && st.Parked == 2 && st.Duplicate >= 1 })
	h.settled("payment")
	if n := runs.of("A234-1"); n != 1 {
		t.Errorf("A234-1 ran %d times, want once", n)
	}
	if n := runs.of("A234-2"); n != 2 {
		t.Errorf("A234-2 ran %d times, want twice", n)
	}
	for eventType, reason := range map[event.Type]string{typePull: event.ReasonDecode, typeBlob: event.ReasonPermanent} {
		page, err := h.queue().List(t.Context(), dlq.Filter{Type: eventType}, dlq.PageOptions{})
		if err != nil || len(page.Entries) != 1 || page.Entries[0].Reason != reason || page.Entries[0].Origin.Stream != h.name {
			t.Errorf("letters of %s: %+v, %v; want one, %s", eventType, page.Entries, err, reason)
		}
	}
	if _, err := h.queue().Replay(t.Context(), dlq.Selection{Filter: dlq.Filter{Type: typeBlob}}, dlq.ReplayOptions{}, nil); err != nil {
		t.Fatal(err)
	}
	bustest.Eventually(t, soon, func() bool { return runs.of("blob-1") == 2 && p.Stats().Handled == 3 })
	if followed := h.stored(paid.Type()); len(followed) != 2 || event.Extension(followed[0], event.ExtCausation) != "A234-1" {
		t.Errorf("%d events followed: %v", len(followed), followed)
	}
}

func TestForeignTypes_without_a_handler_wait_for_one(t *testing.T) {
	t.Parallel()
	h := newHub(t)
	var runs tally
	pulls := func() *consumer.Registry {
		r := consumer.NewRegistry()
		consumer.Handle(r, event.Define[json.RawMessage](typePull), func(_ context.Context, e event.Event, _ json.RawMessage) (consumer.Step, error) {
			runs.add(e.ID())
			return consumer.Step{}, nil
		})
		return r
	}
	h.github(typePush, "push-1", `{"ref":"refs/heads/main"}`)
	h.github(typePull, "pull-1", `{}`)
	p := h.start(h.config(), pulls(), nil)
	bustest.Eventually(t, soon, func() bool { st := p.Stats(); return st.Handled == 1 && st.Released >= 2 })
	if st := p.Stats(); st.Parked != 0 {
		t.Errorf("%d parked, want none", st.Parked)
	}
	if err := p.stop(); err != nil {
		t.Fatal(err)
	}
	r := pulls()
	consumer.HandleOthers(r, func(_ context.Context, e event.Event) (consumer.Step, error) {
		runs.add(e.ID())
		return consumer.Step{}, consumer.Skip
	})
	p = h.start(h.config(), r, nil)
	bustest.Eventually(t, soon, func() bool { return runs.of("push-1") == 1 && p.Stats().Skipped == 1 })
	if n := runs.of("pull-1"); n != 1 {
		t.Errorf("pull-1 ran %d times, want once", n)
	}
}

func TestForeignTypes_need_a_foreign_stream(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	nothing := func(context.Context, event.Event) (consumer.Step, error) { return consumer.Step{}, nil }
	foreign, others, empty, twice := consumer.NewRegistry(), consumer.NewRegistry(), consumer.NewRegistry(), consumer.NewRegistry()
	consumer.HandleEvent(foreign, typePull, nothing)
	consumer.HandleOthers(others, nothing)
	consumer.HandleEvent(empty, "", nothing)
	consumer.HandleOthers(twice, nothing)
	consumer.HandleOthers(twice, nothing)
	attached := config()
	attached.From = &consumer.Stream{Name: "HUB", Subjects: []string{"hub.>"}}
	for name, tt := range map[string]struct {
		registry *consumer.Registry
		cfg      consumer.Config
		want     error
	}{
		"foreign type":           {foreign, config(), event.ErrInvalidType},
		"others":                 {others, config(), consumer.ErrConfig},
		"no type":                {empty, attached, consumer.ErrConfig},
		"others twice":           {twice, attached, consumer.ErrConfig},
		"foreign type, attached": {foreign, attached, nil},
		"others, attached":       {others, attached, nil},
	} {
		if _, err := consumer.New(s.bus, tt.registry, tt.cfg); !errors.Is(err, tt.want) {
			t.Errorf("%s: %v, want %v", name, err, tt.want)
		}
	}
}
