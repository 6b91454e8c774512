package host

import (
	"encoding/json"
	"net/http"
	"strings"

	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/farandole/farandole/internal/web"
)

// Handler is what the process answers to everybody: the parts' routes, /healthz
// (the process runs), /readyz (every part makes progress; 503 and which do not
// otherwise) and /metrics. Why a part makes no progress may name users, hosts
// and tables, so only the log and [Host.AdminHandler] tell it.
func (h *Host) Handler() http.Handler {
	mux := http.NewServeMux()
	for _, p := range h.cfg.Parts {
		mount(mux, p.Routes)
	}
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		writeStatus(w, http.StatusOK, status{Status: "ok"})
	})
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		h.ready(w, func(error) string { return "not ready" })
	})
	if h.cfg.Metrics != nil {
		mux.Handle("GET /metrics", promhttp.HandlerFor(h.cfg.Metrics, promhttp.HandlerOpts{}))
	}
	return web.Problems(mux)
}

// AdminHandler is what the process answers to operators: the parts' Admin
// routes, and /readyz with its reasons.
func (h *Host) AdminHandler() http.Handler {
	mux := http.NewServeMux()
	for _, p := range h.cfg.Parts {
		mount(mux, p.Admin)
	}
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		h.ready(w, error.Error)
	})
	return web.Problems(mux)
}

func mount(mux *http.ServeMux, routes map[string]http.Handler) {
	for path, handler := range routes {
		if mount, below := strings.CutSuffix(path, "/"); below {
			handler = http.StripPrefix(mount, handler)
		}
		mux.Handle(path, handler)
	}
}

// status is the answer of /healthz and /readyz.
type status struct {
	Status string            `json:"status"`
	Parts  map[string]string `json:"parts,omitempty"`
}

// ready answers whether all parts make progress, with what tell says of an error.
func (h *Host) ready(w http.ResponseWriter, tell func(error) string) {
	s, code := status{Status: "ready", Parts: map[string]string{}}, http.StatusOK
	for _, p := range h.cfg.Parts {
		s.Parts[p.Name] = "ok"
		if p.Ready == nil {
			continue
		}
		err := p.Ready()
		h.log(p.Name, err)
		if err != nil {
			s.Parts[p.Name] = tell(err)
			s.Status, code = "not ready", http.StatusServiceUnavailable
		}
	}
	if h.stopping.Load() {
		s.Status, code = "stopping", http.StatusServiceUnavailable
	}
	writeStatus(w, code, s)
}

// log tells of a part that was found to be not ready, and of one that is ready again.
func (h *Host) log(part string, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch was := h.unready[part]; {
	case err != nil && !was:
		h.cfg.Logger.Warn().Err(err).Str("part", part).Msg("not ready")
	case err == nil && was:
		h.cfg.Logger.Warn().Str("part", part).Msg("ready again")
	}
	h.unready[part] = err != nil
}

func writeStatus(w http.ResponseWriter, code int, s status) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(code)
	json.NewEncoder(w).Encode(s) //nolint:errcheck // a reader that has gone cannot be told
}
