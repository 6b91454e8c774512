package order

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"time"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/services/events"
)

// Delays between attempts to catch up.
const (
	catchUpDelay    = time.Second
	maxCatchUpDelay = 30 * time.Second
)

// place records a new order and announces it. The record of an earlier request
// with the same key stands, and is announced if it was not; if it was another
// request the error matches errKeyReused.
func (s *Service) place(ctx context.Context, wanted Order) error {
	st, err := s.store()
	if err != nil {
		return err
	}
	wanted.Updated, wanted.Instance = now(), rand.Text()
	o, revision := wanted, uint64(0)
	for {
		revision, err = st.Put(ctx, o.key(), o, revision)
		if err == nil {
			break
		}
		if !errors.Is(err, bus.ErrConflict) {
			return s.fellBehind(err)
		}
		if o, revision, err = st.Get(ctx, wanted.key()); err != nil {
			return err
		}
		if o.Status != "" {
			break
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		o = wanted // there was a record, and it has been deleted
	}
	if o.Request != wanted.Request {
		return errKeyReused
	}
	return s.announce(ctx, st, o, revision)
}

// cancel records the customer's wish and announces it. Errors are those of onCancel.
func (s *Service) cancel(ctx context.Context, id bus.Key) error {
	st, err := s.store()
	if err != nil {
		return err
	}
	for {
		o, revision, err := st.Get(ctx, id)
		if err != nil {
			return err
		}
		next, err := onCancel(o)
		if err != nil {
			return err
		}
		if next.Status != o.Status {
			next.Updated = now()
			revision, err = st.Put(ctx, id, next, revision)
			if errors.Is(err, bus.ErrConflict) && ctx.Err() == nil {
				continue
			}
			if err != nil {
				return s.fellBehind(err)
			}
		}
		return s.announce(ctx, st, next, revision)
	}
}

// unannounced tells which of an order's two announcements are not known to be
// stored. An order that has ended needs no cancelling any more.
func (o Order) unannounced() (placed, cancel bool) {
	return !o.Announced, o.Status == Cancelling && !o.CancelAnnounced
}

// announce publishes what the record says is unannounced, and notes it. Without
// an error everything is stored.
func (s *Service) announce(ctx context.Context, st store, o Order, revision uint64) error {
	placed, cancel := o.unannounced()
	if !placed && !cancel {
		return nil
	}
	if placed {
		if err := s.publish(ctx, o.eventID("placed"), events.OrderPlaced.New(o.key(), events.Placed{
			OrderID: o.ID, CustomerID: o.CustomerID, Items: o.Items, Total: o.money(),
		})); err != nil {
			return s.fellBehind(err)
		}
	}
	if cancel {
		if err := s.publish(ctx, o.eventID("cancel_requested"), events.OrderCancelRequested.New(o.key(), events.CancelRequested{
			OrderID: o.ID, Reason: o.Reason,
		})); err != nil {
			return s.fellBehind(err)
		}
	}
	if err := note(ctx, st, o, revision, placed, cancel); err != nil {
		// What counts is stored; a missing note costs one more announcement.
		s.log.Warn().Err(s.fellBehind(err)).Str("order_id", o.ID).Msg("order announced, but not noted")
	}
	return nil
}

// note writes down what was announced, without touching what others have
// written meanwhile.
func note(ctx context.Context, st store, o Order, revision uint64, placed, cancel bool) error {
	for {
		o.Announced = o.Announced || placed
		o.CancelAnnounced = o.CancelAnnounced || cancel
		_, err := st.Put(ctx, o.key(), o, revision)
		if !errors.Is(err, bus.ErrConflict) || ctx.Err() != nil {
			return err
		}
		if o, revision, err = st.Get(ctx, o.key()); err != nil {
			return err
		}
		if o.Status == "" { // deleted by hand: nothing to write it on
			return nil
		}
	}
}

// publish stores one event under an id of its own, the same one each time.
func (s *Service) publish(ctx context.Context, id string, d bus.Draft) error {
	e, err := d.Seal(bus.Identity{ID: id, Source: source, Time: time.Now(), TypePrefix: s.bus.Names().TypePrefix})
	if err != nil {
		return fmt.Errorf("order: %w", err)
	}
	if _, err := s.bus.Publish(ctx, e); err != nil {
		return fmt.Errorf("order: announce %s: %w", id, err)
	}
	return nil
}

// fellBehind makes catchUp look for what err has left unannounced. It returns err.
func (s *Service) fellBehind(err error) error {
	select {
	case s.behind <- struct{}{}:
	default: // it is going to look anyway
	}
	return err
}

// catchUp announces what is unannounced: what earlier processes left, and
// later what could not be announced, however its customer has given up.
func (s *Service) catchUp(ctx context.Context, st store) {
	delay := catchUpDelay
	for {
		err := s.announceAll(ctx, st)
		if ctx.Err() != nil {
			return
		}
		if err == nil {
			delay = catchUpDelay
			select {
			case <-ctx.Done():
				return
			case <-s.behind:
			}
		} else {
			s.log.Warn().Err(err).Msg("orders not announced yet")
		}
		select { // also after a signal: what has just failed is not better at once
		case <-ctx.Done():
			return
		case <-time.After(delay):
		}
		if err != nil {
			delay = min(2*delay, maxCatchUpDelay)
		}
	}
}

// announceAll announces all that is unannounced. The orders that other
// requests are just announcing are among them; that is harmless. An unreadable
// record holds up no other order.
func (s *Service) announceAll(ctx context.Context, st store) error {
	var behind []Order
	err := st.Each(ctx, func(_ string, o Order, _ uint64) error {
		if placed, cancel := o.unannounced(); placed || cancel {
			behind = append(behind, o)
		}
		return nil
	})
	errs := []error{err}
	for _, seen := range behind {
		o, revision, err := st.Get(ctx, seen.key())
		if err == nil && o.Status != "" {
			err = s.announce(ctx, st, o, revision)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}
