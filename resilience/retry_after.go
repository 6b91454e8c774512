package resilience

import (
	"errors"
	"math"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// RetryAfter reads a Retry-After header, which holds seconds or a date. It is 0 if the
// header says nothing, or a time that has passed.
func RetryAfter(header string, now time.Time) time.Duration {
	header = strings.TrimSpace(header)
	if n, err := strconv.ParseUint(header, 10, 63); err == nil || errors.Is(err, strconv.ErrRange) {
		return time.Duration(min(n, math.MaxInt64/uint64(time.Second))) * time.Second
	}
	at, err := http.ParseTime(header)
	if err != nil {
		return 0
	}
	return max(at.Sub(now), 0)
}
