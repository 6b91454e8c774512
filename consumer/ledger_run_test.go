package consumer_test

import (
	"context"
	"errors"
	"testing"

	"github.com/farandole/farandole/consumer"
	"github.com/farandole/farandole/dedup"
	"github.com/farandole/farandole/event"
)

// watchedLedger shows when its Run begins and ends, and lets it fail.
type watchedLedger struct {
	dedup.Ledger
	begun, ended chan struct{}
	fail         chan error
}

func watchLedger() (*watchedLedger, func(*process, dedup.Ledger) dedup.Ledger) {
	w := &watchedLedger{begun: make(chan struct{}), ended: make(chan struct{}), fail: make(chan error, 1)}
	return w, func(_ *process, l dedup.Ledger) dedup.Ledger {
		w.Ledger = l
		return w
	}
}

func (w *watchedLedger) Run(ctx context.Context) error {
	close(w.begun)
	defer close(w.ended)
	select {
	case <-ctx.Done():
		return nil
	case err := <-w.fail:
		return err
	}
}

func TestLedgerRunsUntilTheLastHandlerHasReturned(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	ledger, wrap := watchLedger()
	begun, stopping := make(chan struct{}), make(chan struct{})
	r := handling(func(context.Context, event.Event) (consumer.Step, error) {
		close(begun)
		<-stopping
		select {
		case <-ledger.ended:
			t.Error("the ledger has ended before the handler")
		default:
		}
		return consumer.Step{}, nil
	})
	p := s.prepare(config(), r, wrap)
	p.run()
	<-ledger.begun
	s.publishN(1)
	<-begun
	p.cancel()
	close(stopping)
	if err := p.stop(); err != nil {
		t.Error(err)
	}
	<-ledger.ended
	if n := p.Stats().Handled; n != 1 {
		t.Errorf("%d events handled, want 1", n)
	}
}

func TestConsumerEndsWithItsLedger(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	ledger, wrap := watchLedger()
	p := s.prepare(config(), counting(new(tally)), wrap)
	p.run()
	ledger.fail <- errFlaky
	<-p.done
	if !errors.Is(p.err, errFlaky) {
		t.Errorf("Run = %v, want the ledger's error", p.err)
	}
	if err := p.stop(); !errors.Is(err, errFlaky) {
		t.Error(err)
	}
}
