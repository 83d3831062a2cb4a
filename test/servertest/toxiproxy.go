package servertest

import (
	"bytes"
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A Toxiproxy forwards connections, and injects faults into them.
type Toxiproxy struct {
	t   *testing.T
	api string
}

// StartToxiproxy skips the test if tools/get-versitygw has not been run.
func StartToxiproxy(t *testing.T) *Toxiproxy {
	t.Helper()
	binary := filepath.Join(Root, "bin", "toxiproxy")
	if _, err := os.Stat(binary); err != nil {
		t.Skipf("%v; run tools/get-versitygw", err)
	}
	api := FreeAddress(t)
	host, port, _ := strings.Cut(api, ":")
	RunTool(t, api, binary, "-host", host, "-port", port)
	return &Toxiproxy{t, "http://" + api}
}

// Forward has connections to the returned address forwarded.
func (p *Toxiproxy) Forward(name, upstream string) (listens string) {
	p.t.Helper()
	listens = FreeAddress(p.t)
	p.Call("/proxies", map[string]any{"name": name, "listen": listens, "upstream": upstream})
	return listens
}

// Delay adds a latency to what is answered through a proxy.
func (p *Toxiproxy) Delay(name string, milliseconds int) {
	p.t.Helper()
	p.Inject(name, Toxic{"latency", Downstream, map[string]int{"latency": milliseconds}})
}

// Directions of what flows through a proxy.
const (
	Upstream   = "upstream"   // to the server
	Downstream = "downstream" // to the clients
)

// A Toxic is a fault in one direction of the connections of a proxy.
type Toxic struct {
	Kind       string
	Stream     string // Upstream or Downstream
	Attributes map[string]int
}

// Inject adds a fault to a proxy: to the connections that are open, and to later ones.
func (p *Toxiproxy) Inject(name string, t Toxic) {
	p.t.Helper()
	p.Call("/proxies/"+name+"/toxics", map[string]any{"name": t.Kind + "-" + t.Stream, "type": t.Kind, "stream": t.Stream, "attributes": t.Attributes})
}

// Remove ends a proxy, and all of its connections.
func (p *Toxiproxy) Remove(name string) {
	p.t.Helper()
	p.Call("/proxies/"+name, nil)
}

// Call sends a request to the API of the proxy. A nil body means DELETE.
func (p *Toxiproxy) Call(path string, body any) {
	p.t.Helper()
	method, text := http.MethodDelete, []byte(nil)
	if body != nil {
		method = http.MethodPost
		text, _ = json.Marshal(body) // it can be
	}
	req, err := http.NewRequestWithContext(p.t.Context(), method, p.api+path, bytes.NewReader(text))
	if err != nil {
		p.t.Fatal(err)
	}
	if status, _, answer, err := Fetch(req); err != nil || status >= 300 {
		p.t.Fatalf("%s: %d %s %v", path, status, answer, err)
	}
}
