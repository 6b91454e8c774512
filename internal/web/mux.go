package web

import "net/http"

// Problems answers with a problem document where the mux would answer with text:
// for an unknown path or method.
func Problems(mux *http.ServeMux) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		refusal, pattern := mux.Handler(r)
		if pattern != "" {
			mux.ServeHTTP(w, r)
			return
		}
		refused := &refusedResponse{header: http.Header{}}
		refusal.ServeHTTP(refused, r)
		if refused.status == http.StatusMethodNotAllowed {
			w.Header().Set("Allow", refused.header.Get("Allow"))
			NewProblem(refused.status, "method-not-allowed", "This resource does not have the method "+r.Method+".").Write(w)
			return
		}
		NewProblem(http.StatusNotFound, "not-found", "There is no such resource.").Write(w)
	})
}

// refusedResponse keeps the status and header of a response and drops its text.
type refusedResponse struct {
	header http.Header
	status int
}

func (r *refusedResponse) Header() http.Header         { return r.header }
func (r *refusedResponse) WriteHeader(status int)      { r.status = status }
func (r *refusedResponse) Write(b []byte) (int, error) { return len(b), nil }
