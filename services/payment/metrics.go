package payment

import (
	"net/http"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics are what the service measures beside the consumer.
type metrics struct {
	calls *prometheus.HistogramVec
}

func newMetrics(r prometheus.Registerer) (*metrics, error) {
	m := &metrics{calls: prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "farandole_payment_gateway_seconds",
		Help: "How long calls to the gateway took, by path and status; status \"none\" is a call without an answer.",
	}, []string{"path", "status"})}
	return m, r.Register(m.calls)
}

// call counts one call; status 0 means that there was no answer.
func (m *metrics) call(path string, status int, took time.Duration) {
	label := "none"
	if status != 0 {
		label = strconv.Itoa(status)
		if http.StatusText(status) == "" {
			label = "other"
		}
	}
	m.calls.WithLabelValues(path, label).Observe(took.Seconds())
}
