package kservehttp

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"html/template"
	"net/http"
	"strconv"
	"strings"

	"github.com/shoal-serving/shoal/internal/catalog"
	"github.com/shoal-serving/shoal/internal/kserve"
)

// A description is what the server says of itself at its root.
type description struct {
	Name    string             `json:"name"`
	Version string             `json:"version"`
	Ready   bool               `json:"ready"`
	Models  []modelDescription `json:"models"`
	Links   map[string]string  `json:"links"`
}

type modelDescription struct {
	Name    string `json:"name"`
	Version string `json:"version,omitempty"`
	State   string `json:"state"`
	Reason  string `json:"reason,omitempty"`
	Inputs  string `json:"inputs,omitempty"`
	Outputs string `json:"outputs,omitempty"`
	URL     string `json:"url,omitempty"`
}

// describe answers GET /, which is not part of the protocol: with a page for browsers, and
// with JSON for other programs.
func (h *handler) describe(w http.ResponseWriter, r *http.Request) error {
	if h.showDashboard(w, r) {
		return nil
	}
	d := description{
		Name: h.opts.Name, Version: h.opts.Version, Ready: h.catalog.Ready(), Models: []modelDescription{},
		Links: map[string]string{"metadata": "/v2", "live": "/v2/health/live", "ready": "/v2/health/ready", "statistics": "/v2/models/stats"},
	}
	for _, e := range kserve.Index(r.Context(), h.control, false) {
		d.Models = append(d.Models, h.describeModel(r.Context(), e))
	}
	var body bytes.Buffer
	kind := "application/json"
	if wantsPage(r) {
		kind = "text/html; charset=utf-8"
		if err := rootPage.Execute(&body, d); err != nil {
			return err
		}
	} else {
		enc := json.NewEncoder(&body)
		enc.SetEscapeHTML(false)
		enc.SetIndent("", "  ")
		if err := enc.Encode(d); err != nil {
			return err
		}
	}
	w.Header().Set("Vary", "Accept")
	return h.sendCharged(w, kind, body.Bytes())
}

func (h *handler) describeModel(ctx context.Context, e catalog.IndexEntry) modelDescription {
	m := modelDescription{Name: e.Name, Version: e.Version, State: cmp.Or(e.State, "not loaded"), Reason: e.Reason}
	if e.State != "READY" {
		return m
	}
	meta, err := h.catalog.Model(ctx, e.Name, e.Version)
	if err != nil {
		return m // it was unloaded meanwhile
	}
	m.Inputs, m.Outputs, m.URL = tensorList(meta.Inputs), tensorList(meta.Outputs), "/v2/models/"+e.Name
	return m
}

// tensorList describes tensors, such as "x FP32[-1,3]".
func tensorList(all []catalog.Tensor) string {
	var texts []string
	for _, t := range all {
		var dims []string
		for _, d := range t.Shape {
			dims = append(dims, strconv.FormatInt(d, 10))
		}
		texts = append(texts, t.Name+" "+t.Type.String()+"["+strings.Join(dims, ",")+"]")
	}
	return strings.Join(texts, ", ")
}

var rootPage = template.Must(template.New("root").Parse(`<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>Shoal</title>
<style>
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; width: 100%; }
th, td { text-align: left; padding: .3rem .8rem .3rem 0; border-bottom: 1px solid #8884; vertical-align: top; overflow-wrap: anywhere; }
code, pre { font-family: ui-monospace, monospace; font-size: .9em; }
pre { overflow-x: auto; padding: .6rem; background: #8881; }
</style>
<h1>Shoal {{.Version}}</h1>
<p>This is an inference server. It is {{if .Ready}}ready{{else}}<strong>not ready</strong>{{end}}.</p>
{{if .Models}}<table>
<tr><th>Model<th>Version<th>State<th>Inputs<th>Outputs
{{range .Models}}<tr><td>{{if .URL}}<a href="{{.URL}}">{{.Name}}</a>{{else}}{{.Name}}{{end}}<td>{{.Version}}<td>{{.State}}{{if .Reason}}: {{.Reason}}{{end}}<td><code>{{.Inputs}}</code><td><code>{{.Outputs}}</code>
{{end}}</table>
<p>Send a request, or see how a model is batched:</p>
<pre>shoal infer {{(index .Models 0).Name}} --random
shoal explain {{(index .Models 0).Name}}</pre>
{{else}}<p>It has no models.</p>
{{end}}<p>Clients use the KServe v2 protocol: <a href="/v2">server metadata</a>, <a href="/v2/models/stats">statistics</a>, <a href="/v2/health/ready">readiness</a>.</p>
</html>
`))
