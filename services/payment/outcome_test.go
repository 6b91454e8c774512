package payment

import "reflect"

// sameOutcome says whether the consumer would treat both errors alike. What a
// handler wishes for is not exported, so it is read off the errors' types and
// fields: transient errors have none.
func sameOutcome(got, want error) bool {
	if got == nil || want == nil {
		return got == nil && want == nil
	}
	g, gWish := wish(got)
	w, wWish := wish(want)
	return gWish == wWish && g == w
}

// wish returns outcome and delay of a consumer.Permanent or RetryAfter.
func wish(err error) (fields [2]int64, ok bool) {
	v := reflect.ValueOf(err)
	if v.Type().String() != "*consumer.outcomeError" {
		return fields, false
	}
	return [2]int64{v.Elem().FieldByName("outcome").Int(), v.Elem().FieldByName("after").Int()}, true
}
