package inventory

import (
	"encoding/json"
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// Handler serves GET /stock (the documents of all SKUs, by name), /healthz (the
// process lives), /readyz (it can work, see [Service.Health]) and /metrics.
func (s *Service) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /stock", s.getStock)
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { ok(w) })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		if err := s.Health(); err != nil {
			unavailable(w, "not ready", err)
			return
		}
		ok(w)
	})
	mux.Handle("GET /metrics", promhttp.HandlerFor(s.metrics, promhttp.HandlerOpts{}))
	return mux
}

// Metrics are the service's metrics.
func (s *Service) Metrics() prometheus.Gatherer { return s.metrics }

func (s *Service) getStock(w http.ResponseWriter, r *http.Request) {
	all, err := s.store.stock(r.Context())
	if err != nil {
		unavailable(w, "stock cannot be read", err)
		return
	}
	answer(w, http.StatusOK, "application/json", all)
}

func ok(w http.ResponseWriter) {
	answer(w, http.StatusOK, "application/json", map[string]string{"status": "ok"})
}

// unavailable answers with a problem document (RFC 9457).
func unavailable(w http.ResponseWriter, title string, err error) {
	const status = http.StatusServiceUnavailable
	answer(w, status, "application/problem+json", map[string]any{
		"type": "about:blank", "title": title, "status": status, "detail": err.Error(),
	})
}

func answer(w http.ResponseWriter, status int, contentType string, body any) {
	w.Header().Set("Content-Type", contentType)
	w.WriteHeader(status)
	json.NewEncoder(w).Encode(body) //nolint:errcheck // a client that has gone cannot be told
}
