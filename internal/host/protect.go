package host

import (
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"

	"github.com/farandole/farandole/internal/web"
)

// protect refuses what a browser sends on behalf of a foreign page: changes from
// another origin (403), and requests under a name that is not this process's
// (421). hosts are [Config].Hosts.
func protect(h http.Handler, listens net.Addr, hosts []string) http.Handler {
	origin := http.NewCrossOriginProtection()
	origin.SetDenyHandler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		web.NewProblem(http.StatusForbidden, "foreign-origin", "A page of another origin must not change anything here.").Write(w)
	}))
	h = origin.Handler(h)
	if len(hosts) == 0 && !isLoopback(listens.String()) {
		return h
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		name := hostname(r.Host)
		if !strings.EqualFold(name, "localhost") && !isLoopback(name) &&
			!slices.ContainsFunc(hosts, func(host string) bool { return strings.EqualFold(host, name) }) {
			web.NewProblem(http.StatusMisdirectedRequest, "unknown-host",
				fmt.Sprintf("This process is not known as %q. Whoever started it can allow the name: --allow-host.", name)).Write(w)
			return
		}
		h.ServeHTTP(w, r)
	})
}

// hostname is the name in a Host header, without port and brackets.
func hostname(host string) string {
	if name, _, err := net.SplitHostPort(host); err == nil {
		return name
	}
	return strings.Trim(host, "[]")
}

// isLoopback says whether an address, with or without a port, is this machine's alone.
func isLoopback(address string) bool {
	ip := net.ParseIP(hostname(address))
	return ip != nil && ip.IsLoopback()
}
