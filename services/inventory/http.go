package inventory

import (
	"encoding/json"
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
)

// Handler serves GET /stock: the documents of all SKUs, as a JSON array sorted by SKU.
func (s *Service) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /stock", s.getStock)
	return mux
}

// Metrics returns the consumer's metrics.
func (s *Service) Metrics() prometheus.Gatherer { return s.metrics }

func (s *Service) getStock(w http.ResponseWriter, r *http.Request) {
	all, err := s.store.stock(r.Context())
	if err != nil {
		s.log.Warn().Err(err).Msg("stock cannot be read")
		unavailable(w, "The stock cannot be read now. Send the same request again.")
		return
	}
	answer(w, http.StatusOK, "application/json", all)
}

// unavailable answers with a problem document (RFC 9457).
func unavailable(w http.ResponseWriter, detail string) {
	const status = http.StatusServiceUnavailable
	answer(w, status, "application/problem+json", map[string]any{
		"type": "about:blank", "title": "stock cannot be read", "status": status, "detail": detail,
	})
}

func answer(w http.ResponseWriter, status int, contentType string, body any) {
	w.Header().Set("Content-Type", contentType)
	w.WriteHeader(status)
	json.NewEncoder(w).Encode(body) //nolint:errcheck // a client that has gone cannot be told
}
