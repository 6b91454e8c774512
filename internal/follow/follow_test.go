package follow_test

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/bustest"
	"github.com/farandole/farandole/event"
	"github.com/farandole/farandole/internal/follow"
	"github.com/farandole/farandole/internal/testkit/wiretap"
	"github.com/farandole/farandole/topology"
)

func TestMain(m *testing.M) { bustest.Main(m) }

func publish(t *testing.T, b *bus.Bus, eventType event.Type, ids ...string) {
	t.Helper()
	for _, id := range ids {
		e, err := b.Seal(event.Draft{Type: eventType, Key: "ord-1", ID: id})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := b.Publish(t.Context(), e); err != nil {
			t.Fatal(err)
		}
	}
}

// read returns the ids of what is read.
func read(t *testing.T, b *bus.Bus, o follow.Options) (ids []string) {
	t.Helper()
	err := follow.Read(t.Context(), b, o, func(m follow.Message) error {
		ids = append(ids, m.Header.Get("ce-id"))
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return ids
}

func TestRead_ends_with_the_newest_message(t *testing.T) {
	t.Parallel()
	b := bustest.NewBus(t)
	if ids := read(t, b, follow.Options{FromStart: true, NoFollow: true}); len(ids) != 0 {
		t.Errorf("empty stream: %v", ids)
	}
	publish(t, b, "order.placed.v1", "a", "b")
	publish(t, b, "order.confirmed.v1", "c")
	for _, tt := range []struct {
		name string
		o    follow.Options
		want []string
	}{
		{"all", follow.Options{FromStart: true}, []string{"a", "b", "c"}},
		{"filtered", follow.Options{FromStart: true, Filters: []string{b.Names().TypeFilter("order.confirmed.v1")}}, []string{"c"}},
		{"nothing matches", follow.Options{FromStart: true, Filters: []string{b.Names().TypeFilter("x.y.v1")}}, nil},
		{"since long ago", follow.Options{Since: time.Now().Add(-time.Hour)}, []string{"a", "b", "c"}},
		{"from now on", follow.Options{}, nil},
	} {
		tt.o.NoFollow = true
		if ids := read(t, b, tt.o); !slices.Equal(ids, tt.want) {
			t.Errorf("%s: %v, want %v", tt.name, ids, tt.want)
		}
	}
}

func TestRead_follows_until_stopped(t *testing.T) {
	t.Parallel()
	b := bustest.NewBus(t)
	publish(t, b, "order.placed.v1", "a")
	var ids []string
	err := follow.Read(t.Context(), b, follow.Options{FromStart: true}, func(m follow.Message) error {
		ids = append(ids, m.Header.Get("ce-id"))
		if len(ids) == 1 {
			publish(t, b, "order.placed.v1", "b")
			return nil
		}
		return follow.ErrStop
	})
	if err != nil || !slices.Equal(ids, []string{"a", "b"}) {
		t.Errorf("%v, %v", ids, err)
	}
}

func TestRead_returns_what_went_wrong(t *testing.T) {
	t.Parallel()
	b := bustest.NewBus(t)
	publish(t, b, "order.placed.v1", "a")
	reason := errors.New("disk full")
	err := follow.Read(t.Context(), b, follow.Options{FromStart: true}, func(follow.Message) error { return reason })
	if !errors.Is(err, reason) {
		t.Errorf("error of visit: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	err = follow.Read(ctx, b, follow.Options{FromStart: true}, func(follow.Message) error { cancel(); return nil })
	if !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
	if err := b.JetStream().DeleteStream(t.Context(), b.Names().EventsStream()); err != nil {
		t.Fatal(err)
	}
	if err := follow.Read(t.Context(), b, follow.Options{NoFollow: true}, nil); !errors.Is(err, bus.ErrNoStream) {
		t.Errorf("no stream: %v", err)
	}
}

// A consumer whose server has gone, which says nothing any more, is made anew
// where it was.
func TestRead_survives_the_loss_of_its_consumer(t *testing.T) {
	t.Parallel()
	server := bustest.Server(t)
	names := event.Names{Prefix: bustest.Prefix()}
	b := bustest.Provision(t, bustest.Connect(t, bus.Config{InProcess: server, Names: names}), topology.Config{})
	publish(t, b, "order.placed.v1", "a", "b", "c")
	var mute atomic.Bool // from the first event on, until the consumer is gone
	tap := wiretap.New(server, nil, func(frame []byte) wiretap.Verdict {
		if fromConsumer := bytes.Contains(frame, []byte("NATS/1.0")); fromConsumer && mute.Load() {
			return wiretap.Drop
		}
		if bytes.Contains(frame, []byte("ce-id: a")) {
			mute.Store(true)
		}
		return wiretap.Pass
	})
	tapped := bustest.Connect(t, bus.Config{InProcess: tap, Names: names})
	var ids []string
	err := follow.Read(t.Context(), tapped, follow.Options{FromStart: true, NoFollow: true}, func(m follow.Message) error {
		if ids = append(ids, m.Header.Get("ce-id")); len(ids) > 1 {
			return nil
		}
		stream, err := b.JetStream().Stream(t.Context(), b.Names().EventsStream())
		if err != nil {
			return err
		}
		for name := range stream.ConsumerNames(t.Context()).Name() {
			if err := stream.DeleteConsumer(t.Context(), name); err != nil {
				return err
			}
		}
		time.AfterFunc(100*time.Millisecond, func() { mute.Store(false) })
		return nil
	})
	if err != nil || !slices.Equal(ids, []string{"a", "b", "c"}) {
		t.Errorf("%v, %v", ids, err)
	}
}

func TestMessage_that_does_not_agree_with_its_subject_is_no_event(t *testing.T) {
	t.Parallel()
	b := bustest.NewBus(t)
	e, err := b.Seal(event.Draft{Type: "order.placed.v1", Key: "ord-1", ID: "a"})
	if err != nil {
		t.Fatal(err)
	}
	m, err := b.Message(e)
	if err != nil {
		t.Fatal(err)
	}
	m.Subject = b.Names().EventSubject("order.confirmed.v1", "ord-1")
	if _, err := b.JetStream().PublishMsg(t.Context(), m); err != nil {
		t.Fatal(err)
	}
	err = follow.Read(t.Context(), b, follow.Options{FromStart: true, NoFollow: true}, func(m follow.Message) error {
		if _, problem := m.Event(); !strings.Contains(problem, `"order.placed.v1" on subject`) {
			t.Errorf("problem: %q, want the type and the subject", problem)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// consumers returns the names of the event stream's consumers.
func consumers(t *testing.T, b *bus.Bus) (names []string) {
	t.Helper()
	stream, err := b.JetStream().Stream(t.Context(), b.Names().EventsStream())
	if err != nil {
		t.Fatal(err)
	}
	for name := range stream.ConsumerNames(t.Context()).Name() {
		names = append(names, name)
	}
	return names
}

// Who reads in a loop is not refused for all the consumers that earlier reads had.
func TestRead_leaves_no_consumer_behind(t *testing.T) {
	t.Parallel()
	b := bustest.NewBus(t)
	publish(t, b, "order.placed.v1", "a", "b")
	stop := func(follow.Message) error { return follow.ErrStop }
	ctx, cancel := context.WithCancel(t.Context())
	interrupt := func(follow.Message) error { cancel(); return nil }
	for name, read := range map[string]func() error{
		"to the end": func() error {
			return follow.Read(t.Context(), b, follow.Options{FromStart: true, NoFollow: true}, func(follow.Message) error { return nil })
		},
		"nothing to read": func() error { return follow.Read(t.Context(), b, follow.Options{NoFollow: true}, stop) },
		"stopped":         func() error { return follow.Read(t.Context(), b, follow.Options{FromStart: true}, stop) },
		"interrupted":     func() error { return follow.Read(ctx, b, follow.Options{FromStart: true}, interrupt) },
	} {
		if err := read(); err != nil && !errors.Is(err, context.Canceled) {
			t.Errorf("%s: %v", name, err)
		}
		if left := consumers(t, b); len(left) > 0 {
			t.Errorf("%s: %v are left", name, left)
		}
	}
}

// A consumer that is lost before its first message is made anew where it began:
// what was published meanwhile is not missed.
func TestRead_from_now_on_begins_once(t *testing.T) {
	t.Parallel()
	server := bustest.Server(t)
	names := event.Names{Prefix: bustest.Prefix()}
	b := bustest.Provision(t, bustest.Connect(t, bus.Config{InProcess: server, Names: names}), topology.Config{})
	publish(t, b, "order.placed.v1", "a")
	var mute atomic.Bool
	tap := wiretap.New(server, nil, func(frame []byte) wiretap.Verdict {
		if mute.Load() && bytes.Contains(frame, []byte("NATS/1.0")) {
			return wiretap.Drop
		}
		return wiretap.Pass
	})
	tapped := bustest.Connect(t, bus.Config{InProcess: tap, Names: names})
	var ids []string
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	done := make(chan error, 1)
	go func() {
		done <- follow.Read(ctx, tapped, follow.Options{}, func(m follow.Message) error {
			ids = append(ids, m.Header.Get("ce-id"))
			return follow.ErrStop
		})
	}()
	bustest.Eventually(t, time.Minute, func() bool { return len(consumers(t, b)) == 1 })
	mute.Store(true)
	if err := b.JetStream().DeleteConsumer(t.Context(), b.Names().EventsStream(), consumers(t, b)[0]); err != nil {
		t.Fatal(err)
	}
	publish(t, b, "order.placed.v1", "b")
	mute.Store(false)
	if err := <-done; err != nil || !slices.Equal(ids, []string{"b"}) {
		t.Errorf("%v, %v", ids, err)
	}
}
