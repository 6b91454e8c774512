package inventory

import (
	"net/http"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/farandole/farandole/internal/web"
)

// Handler serves GET /stock: the documents of all SKUs, as a JSON array sorted by SKU.
func (s *Service) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /stock", s.getStock)
	return web.Problems(mux)
}

// Metrics returns the consumer's metrics.
func (s *Service) Metrics() prometheus.Gatherer { return s.metrics }

func (s *Service) getStock(w http.ResponseWriter, r *http.Request) {
	all, err := s.store.stock(r.Context())
	if err != nil {
		s.log.Warn().Err(err).Msg("stock cannot be read")
		web.NewProblem(http.StatusServiceUnavailable, "unavailable", "The stock cannot be read now. Send the same request again.").Write(w)
		return
	}
	web.WriteJSON(w, http.StatusOK, all)
}
