// Package dashboard serves the page that shows a server at work: its models with their figures,
// and the batches of one of them as they run. The page is built from web/ and embedded; its
// figures arrive as server-sent events.
//
// It reads what the metrics report and what the scheduler shows to open watches. Without a viewer
// it holds no memory, runs no goroutine and costs requests nothing.
package dashboard

import (
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"net/http"
	"path"
	"strconv"
	"time"

	"github.com/shoal-serving/shoal/internal/access"
	"github.com/shoal-serving/shoal/internal/budget"
	"github.com/shoal-serving/shoal/internal/infer"
	"github.com/shoal-serving/shoal/internal/server"
	"github.com/shoal-serving/shoal/internal/stats"
)

//go:embed dist
var dist embed.FS

// page is the name of the page itself.
const page = "index.html"

// A Source is the server that the page shows.
type Source interface {
	Live() []server.Live
	UnknownModel() [infer.NumCodes]uint64
	Counters(model, version string) (*stats.Counters, error)
	Accepting() bool
	Unready() bool
	InFlight() int
	Stopping() <-chan struct{} // closed when requests are refused because the server stops
}

// Options configure a dashboard. The zero value is usable.
type Options struct {
	// Version is that of the server.
	Version string
	// Budget bounds the memory of all requests. Nil means no limit.
	Budget *budget.Budget
	// Tenants are those whose use is shown. Nil means none.
	Tenants *access.Tenants
	// Interval is the time between two events. Zero means 500 ms.
	Interval time.Duration
}

// A Dashboard serves the page and its events. The protocol that calls it has checked that the caller
// may observe the server.
type Dashboard struct {
	src   Source
	opts  Options
	files map[string]file
	board board
	reels reels
}

// A file is one of the page.
type file struct {
	body []byte
	kind string // Content-Type
	tag  string
}

// New returns the dashboard of a server.
func New(src Source, opts Options) *Dashboard {
	if opts.Interval == 0 {
		opts.Interval = 500 * time.Millisecond
	}
	d := &Dashboard{src: src, opts: opts, files: map[string]file{}}
	for _, name := range []string{page, "dashboard/app.js", "dashboard/app.css", "dashboard/icon.svg"} {
		body, err := dist.ReadFile("dist/" + name)
		if err != nil {
			panic(err) // it is embedded
		}
		sum := sha256.Sum256(body)
		d.files[path.Base(name)] = file{body: body, kind: kinds[path.Ext(name)], tag: strconv.Quote(hex.EncodeToString(sum[:8]))}
	}
	return d
}

// kinds are the Content-Types by the end of a name. The table of package mime depends on the
// machine.
var kinds = map[string]string{
	".html": "text/html; charset=utf-8",
	".js":   "text/javascript; charset=utf-8",
	".css":  "text/css; charset=utf-8",
	".svg":  "image/svg+xml",
}

// policy lets the page use its own files and nothing else.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

// ServePage answers with the page.
func (d *Dashboard) ServePage(w http.ResponseWriter, r *http.Request) { d.serve(w, r, page) }

// ServeFile answers with a file of the page, and reports whether it exists.
func (d *Dashboard) ServeFile(w http.ResponseWriter, r *http.Request, name string) bool {
	if _, ok := d.files[name]; !ok || name == page {
		return false
	}
	d.serve(w, r, name)
	return true
}

func (d *Dashboard) serve(w http.ResponseWriter, r *http.Request, name string) {
	f := d.files[name]
	header := w.Header()
	header.Set("Content-Security-Policy", policy)
	header.Set("X-Content-Type-Options", "nosniff")
	header.Set("Referrer-Policy", "no-referrer")
	header.Set("Cache-Control", "no-cache") // asks with the tag each time: a new server has new files
	header.Set("ETag", f.tag)
	if r.Header.Get("If-None-Match") == f.tag {
		w.WriteHeader(http.StatusNotModified)
		return
	}
	header.Set("Content-Type", f.kind)
	header.Set("Content-Length", strconv.Itoa(len(f.body)))
	_, _ = w.Write(f.body) // fails only if the client has disconnected
}
