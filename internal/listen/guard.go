package listen

import (
	"encoding/json"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// A guard rejects requests that a web page makes a browser send: a page of another site can
// reach every port that the browser can, loopback included.
//
// Requests whose Origin or Sec-Fetch-Site names another site get 403, unless they only
// read: a browser does not show such a page the answer. Requests for a host name that is
// not the server's get 421. Otherwise a site could let its own name resolve to the server's
// address (DNS rebinding), which makes its requests same-origin.
type guard struct {
	next    http.Handler
	origins http.CrossOriginProtection
	hosts   []string // names in lower case, besides localhost; "*" means any
}

// newGuard returns a guard for a port at address. It accepts the host of address and the
// given additional hosts.
func newGuard(address string, hosts []string, next http.Handler) *guard {
	g := &guard{next: next}
	if host, _, err := net.SplitHostPort(address); err == nil {
		hosts = append([]string{host}, hosts...)
	}
	for _, host := range hosts {
		g.hosts = append(g.hosts, strings.ToLower(host))
	}
	return g
}

func (g *guard) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if !g.accepts(r.Host) {
		refuse(w, http.StatusMisdirectedRequest, "host "+strconv.Quote(r.Host)+" is not a name of this server; use its address, or allow the name with --allowed-hosts")
		return
	}
	if fromPage(r) && g.origins.Check(r) != nil {
		refuse(w, http.StatusForbidden, "requests from web pages of other sites are not allowed")
		return
	}
	g.next.ServeHTTP(w, r)
}

// fromPage reports whether a request has one of the headers by which Check knows browsers. Check
// accepts all others, after it has made the names of both headers canonical.
func fromPage(r *http.Request) bool {
	return r.Header["Sec-Fetch-Site"] != nil || r.Header["Origin"] != nil
}

// accepts reports whether a Host header names this server. An address always does: DNS
// rebinding needs a name. So does an empty header, which browsers do not send.
func (g *guard) accepts(header string) bool {
	host := strings.TrimSuffix(hostname(header), ".")
	if host == "" || slices.Contains(g.hosts, host) || strings.EqualFold(host, "localhost") {
		return true
	}
	if _, err := netip.ParseAddr(host); err == nil {
		return true
	}
	return slices.Contains(g.hosts, "*") || slices.Contains(g.hosts, strings.ToLower(host))
}

// hostname returns a Host header without its port and without the brackets of an IPv6
// address.
func hostname(header string) string {
	host := header
	if i := strings.LastIndexByte(header, ':'); i >= 0 && !strings.HasSuffix(header, "]") {
		host = header[:i]
	}
	return strings.TrimSuffix(strings.TrimPrefix(host, "["), "]")
}

// refuse sends an error in the form of KServe.
func refuse(w http.ResponseWriter, status int, text string) {
	body, _ := json.Marshal(map[string]string{"error": text}) // cannot fail for a string
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(status)
	_, _ = w.Write(body) // fails only if the client has disconnected
}
