package host

import (
	"encoding/json"
	"net/http"
	"strings"

	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// Handler is what the process answers: the parts' routes, /healthz (the
// process runs), /readyz (every part makes progress; 503 and why otherwise)
// and /metrics.
func (h *Host) Handler() http.Handler {
	mux := http.NewServeMux()
	for _, p := range h.cfg.Parts {
		for path, handler := range p.Routes {
			if mount, below := strings.CutSuffix(path, "/"); below {
				handler = http.StripPrefix(mount, handler)
			}
			mux.Handle(path, handler)
		}
	}
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		writeStatus(w, http.StatusOK, status{Status: "ok"})
	})
	mux.HandleFunc("GET /readyz", h.ready)
	if h.cfg.Metrics != nil {
		mux.Handle("GET /metrics", promhttp.HandlerFor(h.cfg.Metrics, promhttp.HandlerOpts{}))
	}
	return mux
}

// status is the answer of /healthz and /readyz.
type status struct {
	Status string            `json:"status"`
	Parts  map[string]string `json:"parts,omitempty"`
}

func (h *Host) ready(w http.ResponseWriter, _ *http.Request) {
	s, code := status{Status: "ready", Parts: map[string]string{}}, http.StatusOK
	for _, p := range h.cfg.Parts {
		s.Parts[p.Name] = "ok"
		if p.Ready == nil {
			continue
		}
		if err := p.Ready(); err != nil {
			s.Parts[p.Name] = err.Error()
			s.Status, code = "not ready", http.StatusServiceUnavailable
		}
	}
	if h.stopping.Load() {
		s.Status, code = "stopping", http.StatusServiceUnavailable
	}
	writeStatus(w, code, s)
}

func writeStatus(w http.ResponseWriter, code int, s status) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(code)
	json.NewEncoder(w).Encode(s) //nolint:errcheck // a reader that has gone cannot be told
}
