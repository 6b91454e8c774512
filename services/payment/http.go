package payment

import (
	"encoding/json"
	"net/http"
)

const maxBody = 1 << 10 // bytes of a request's body

// Admin serves GET and PUT /faults {"poison":bool}, the switch of the fault
// "poison". It is for operators: do not serve it to customers.
func (s *Service) Admin() http.Handler {
	mux := http.NewServeMux()
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
		refuse(w, "body is not the JSON document it should be")
		return
	}
	if body.Poison == nil {
		refuse(w, "invalid faults")
		return
	}
	s.SetPoison(*body.Poison)
	s.getFaults(w, r)
}

// refuse answers with a problem document (RFC 9457).
func refuse(w http.ResponseWriter, title string) {
	const status = http.StatusBadRequest
	answer(w, status, "application/problem+json", map[string]any{
		"type": "about:blank", "title": title, "status": status, "detail": `want {"poison":true} or {"poison":false}`,
	})
}

func answer(w http.ResponseWriter, status int, contentType string, body any) {
	w.Header().Set("Content-Type", contentType)
	w.WriteHeader(status)
	json.NewEncoder(w).Encode(body) //nolint:errcheck // a client that has gone cannot be told
}
