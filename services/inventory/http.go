package inventory

import (
	"encoding/json"
	"net/http"
	"slices"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
)

// Handler serves GET /stock: the documents of all SKUs, by name.
func (s *Service) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /stock", s.getStock)
	return mux
}

// Metrics are the service's metrics.
func (s *Service) Metrics() prometheus.Gatherer { return s.metrics }

func (s *Service) getStock(w http.ResponseWriter, r *http.Request) {
	st, err := s.opened()
	var all []Stock
	if err == nil {
		all, err = st.allStock(r.Context())
	}
	if err != nil {
		w.Header().Set("Content-Type", "application/problem+json")
		w.WriteHeader(http.StatusServiceUnavailable)
		_ = json.NewEncoder(w).Encode(map[string]any{ // a client that has gone cannot be told
			"title": "stock cannot be read", "status": http.StatusServiceUnavailable, "detail": err.Error(),
		})
		return
	}
	slices.SortFunc(all, func(a, b Stock) int { return strings.Compare(a.SKU, b.SKU) })
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(all) // likewise
}
