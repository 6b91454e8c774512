package inventory

import "context"

// sweep gives back what is held in vain. Handlers do so themselves, but for a
// run that was overtaken: its event is done, so it does not come again, and if
// the process ends right after a hold nobody else looks for it. What an order
// says to be held in vain stays so, whatever its event handlers do meanwhile.
func (s *Service) sweep(ctx context.Context, st store) error {
	all, err := st.allStock(ctx)
	if err != nil {
		return err
	}
	for _, x := range all {
		for id := range x.Holds {
			o, _, err := st.order(ctx, id)
			if err != nil {
				return err
			}
			release := func(x Stock) (Stock, bool) { return x.release(id, o.vain()) }
			if err := s.desk(x.SKU).do(ctx, st, x.SKU, release); err != nil {
				return err
			}
		}
	}
	return nil
}
