package webhook

import (
	"net/http"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/farandole/farandole/event"
)

// metrics are the webhook's own, beside the consumer's.
type metrics struct {
	deliveries *prometheus.HistogramVec
}

func newMetrics(r prometheus.Registerer, name event.Consumer) (*metrics, error) {
	m := &metrics{deliveries: prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name:        "farandole_webhook_delivery_seconds",
		Help:        "How long deliveries took, by the status of their answer; status \"none\" is a delivery without an answer.",
		ConstLabels: prometheus.Labels{"consumer": string(name)},
	}, []string{"status"})}
	return m, r.Register(m.deliveries)
}

// delivery counts one delivery; status 0 means that there was no answer.
func (m *metrics) delivery(status int, took time.Duration) {
	label := "none"
	if status != 0 {
		label = strconv.Itoa(status)
		if http.StatusText(status) == "" {
			label = "other" // the receiver must not be able to make up any number of labels
		}
	}
	m.deliveries.WithLabelValues(label).Observe(took.Seconds())
}
