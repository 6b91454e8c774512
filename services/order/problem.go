package order

import (
	"net/http"
	"strings"

	"github.com/farandole/farandole/internal/web"
)

func invalid(errs []web.Fault) *web.Problem {
	p := web.NewProblem(http.StatusUnprocessableEntity, "invalid-order", "The order cannot be accepted as it is.")
	p.Errors = errs
	return p
}

// badQuery is the problem document of a wrong query. Its detail names every error.
func badQuery(errs []web.Fault) *web.Problem {
	var detail []string
	for _, e := range errs {
		detail = append(detail, e.Parameter+" "+e.Detail)
	}
	p := web.NewProblem(http.StatusBadRequest, "invalid-query", "The query cannot be answered: "+strings.Join(detail, "; ")+".")
	p.Errors = errs
	return p
}

// unavailable asks the client to send the request again soon.
func unavailable(detail string) *web.Problem {
	return web.NewProblem(http.StatusServiceUnavailable, "unavailable", detail)
}
