package payment

import (
	"net/http"

	"github.com/farandole/farandole/internal/web"
)

const maxBody = 1 << 10 // bytes of a request's body

// Admin serves GET and PUT /faults {"poison":bool}, the switch of the fault
// "poison". It is for operators: do not serve it to customers.
func (s *Service) Admin() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /faults", s.getFaults)
	mux.HandleFunc("PUT /faults", s.putFaults)
	return web.Problems(mux)
}

func (s *Service) getFaults(w http.ResponseWriter, _ *http.Request) {
	web.WriteJSON(w, http.StatusOK, map[string]bool{"poison": s.poison.Load()})
}

func (s *Service) putFaults(w http.ResponseWriter, r *http.Request) {
	var body struct {
		Poison *bool `json:"poison"`
	}
	if p := web.ReadJSON(w, r, maxBody, &body); p != nil {
		p.Write(w)
		return
	}
	if body.Poison == nil {
		p := web.NewProblem(http.StatusBadRequest, "invalid-faults", `Send {"poison":true} or {"poison":false}.`)
		p.Errors = []web.Fault{{Pointer: "#/poison", Detail: "must be true or false"}}
		p.Write(w)
		return
	}
	s.SetPoison(*body.Poison)
	s.getFaults(w, r)
}
