package payment

import (
	"encoding/json"
	"net/http"

	"github.com/prometheus/client_golang/prometheus/promhttp"
)

const maxBody = 1 << 10 // bytes of a request

// Handler serves GET /healthz (the process lives), GET /readyz (it can work,
// see [Service.Health]), GET /metrics, and GET and PUT /faults {"poison":bool}.
func (s *Service) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { ok(w) })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		if err := s.Health(); err != nil {
			refuse(w, http.StatusServiceUnavailable, "not ready", err.Error())
			return
		}
		ok(w)
	})
	mux.Handle("GET /metrics", promhttp.HandlerFor(s.metrics, promhttp.HandlerOpts{}))
	mux.HandleFunc("GET /faults", s.getFaults)
	mux.HandleFunc("PUT /faults", s.putFaults)
	return mux
}

func (s *Service) getFaults(w http.ResponseWriter, _ *http.Request) {
	answer(w, http.StatusOK, "application/json", map[string]bool{"poison": s.poison.Load()})
}

func (s *Service) putFaults(w http.ResponseWriter, r *http.Request) {
	var body struct {
		Poison *bool `json:"poison"`
	}
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxBody)).Decode(&body); err != nil {
		refuse(w, http.StatusBadRequest, "body is not a JSON document", err.Error())
		return
	}
	if body.Poison == nil {
		refuse(w, http.StatusBadRequest, "invalid faults", `want {"poison":true} or {"poison":false}`)
		return
	}
	s.SetPoison(*body.Poison)
	s.getFaults(w, r)
}

func ok(w http.ResponseWriter) {
	answer(w, http.StatusOK, "application/json", map[string]string{"status": "ok"})
}

// refuse answers with a problem document (RFC 9457).
func refuse(w http.ResponseWriter, status int, title, detail string) {
	answer(w, status, "application/problem+json", map[string]any{
		"type": "about:blank", "title": title, "status": status, "detail": detail,
	})
}

func answer(w http.ResponseWriter, status int, contentType string, body any) {
	w.Header().Set("Content-Type", contentType)
	w.WriteHeader(status)
	json.NewEncoder(w).Encode(body) //nolint:errcheck // a client that has gone cannot be told
}
