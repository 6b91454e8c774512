package webhook

import (
	"errors"
	"net/http"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/farandole/farandole/consumer"
)

func TestFaultOfAnAnswer(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, time.January, 2, 15, 4, 5, 0, time.UTC)
	const longest = time.Minute
	done := func(error) error { return nil }
	again := func(err error) error { return err }
	permanent := consumer.Permanent
	after := func(d time.Duration) func(error) error {
		return func(err error) error { return consumer.RetryAfter(err, d) }
	}
	for _, tt := range []struct {
		status     int
		retryAfter string
		want       func(error) error
	}{
		{200, "", done},
		{201, "", done},
		{202, "60", done},
		{204, "", done},
		{299, "", done},
		{300, "", permanent},
		{301, "", permanent},
		{304, "", permanent},
		{307, "5", permanent},
		{308, "", permanent},
		{400, "", permanent},
		{401, "5", permanent},
		{403, "", permanent},
		{404, "", permanent},
		{405, "", permanent},
		{410, "", permanent},
		{413, "5", permanent},
		{415, "", permanent},
		{422, "", permanent},
		{499, "", permanent},
		{408, "", again},
		{409, "", again},
		{421, "", again},
		{425, "", again},
		{429, "", again},
		{429, "7", after(7 * time.Second)},
		{429, "0", again},
		{429, "-7", again},
		{429, "soon", again},
		{429, "1.5", again},
		{500, "", again},
		{501, "", again},
		{502, "", again},
		{503, "", again},
		{503, " 7 ", after(7 * time.Second)},
		{503, "60", after(longest)},
		{503, "61", after(longest)},
		{503, "99999999999", after(longest)},
		{503, "99999999999999999999999999", after(longest)},
		{503, "Fri, 02 Jan 2026 15:04:15 GMT", after(10 * time.Second)},
		{503, "Friday, 02-Jan-26 15:04:15 GMT", after(10 * time.Second)},
		{503, "Fri, 02 Jan 2026 15:04:05 GMT", again},
		{503, "Fri, 02 Jan 2026 14:00:00 GMT", again},
		{503, "Sat, 02 Jan 2027 14:00:00 GMT", after(longest)},
		{504, "", again},
		{999, "", again},
		{101, "", again},
	} {
		got := faultOf(answer{status: tt.status, header: http.Header{"Retry-After": {tt.retryAfter}}}, now, longest)
		var status *statusError
		errors.As(got, &status)
		if want := tt.want(status); !reflect.DeepEqual(got, want) {
			t.Errorf("%d, Retry-After %q: %#v, want %#v", tt.status, tt.retryAfter, got, want)
		}
		if got != nil && (!errors.Is(got, ErrReceiver) || status.status != tt.status) {
			t.Errorf("%d: %v does not match ErrReceiver and its status", tt.status, got)
		}
	}
}

func TestTheAnswerIsToldPrintably(t *testing.T) {
	t.Parallel()
	err := faultOf(answer{status: 503, body: []byte("maintenance \x1b[2J\u202e\r\nuntil 5 \xff")}, time.Now(), time.Minute)
	if got, want := err.Error(), `webhook: receiver: 503 Service Unavailable: "maintenance \x1b[2J\u202e\r\nuntil 5 \xff"`; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	if err := faultOf(answer{status: 302}, time.Now(), time.Minute); !strings.Contains(err.Error(), "redirect not followed") {
		t.Error(err)
	}
}
