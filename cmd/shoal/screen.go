package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/shoal-serving/shoal/client"
	"github.com/shoal-serving/shoal/internal/console"
	"github.com/shoal-serving/shoal/internal/explain"
)

// A screen shows the log of a server to a person at a terminal: warnings, errors and
// changes, without times and without what the start-up lines say. It implements
// [slog.Handler].
type screen struct {
	attrs []slog.Attr
	*screenState
}

type screenState struct {
	out   io.Writer
	width int
	paint console.Palette

	mu        sync.Mutex // guards the following
	addresses []string   // pairs of protocol and address, in the order of their opening
	ready     bool       // the start-up lines are written
	early     []string   // lines that are written after them
}

func newScreen(out io.Writer) *screen {
	return &screen{screenState: &screenState{out: out, width: console.Width(out), paint: console.PaletteOf(out)}}
}

// Enabled implements [slog.Handler]. The levels are those of the log.
func (s *screen) Enabled(context.Context, slog.Level) bool { return true }

// WithAttrs implements [slog.Handler].
func (s *screen) WithAttrs(attrs []slog.Attr) slog.Handler {
	return &screen{slices.Concat(s.attrs, attrs), s.screenState}
}

// WithGroup implements [slog.Handler]. A screen does not show groups.
func (s *screen) WithGroup(string) slog.Handler { return s }

// Handle implements [slog.Handler].
func (s *screen) Handle(_ context.Context, r slog.Record) error {
	attrs := slices.Clone(s.attrs)
	r.Attrs(func(a slog.Attr) bool {
		attrs = append(attrs, a)
		return true
	})
	s.mu.Lock()
	defer s.mu.Unlock()
	switch r.Message {
	case "listening":
		s.addresses = append(s.addresses, valueOf(attrs, "protocol"), valueOf(attrs, "address"))
		return nil
	case "settings", "ready", "ONNX Runtime opened", "reloaded with tuned settings", "stopped":
		return nil
	case "stopping":
		s.line(fmt.Sprintf("Stopping: requests in flight have %s s to complete; Ctrl-C again stops at once", valueOf(attrs, "seconds")))
		return nil
	case "model loaded", "model not loaded", "serving without some models":
		if !s.ready {
			return nil // the start-up lines have it, or the error that ends the server
		}
	case "model measured":
		text := tuned(attrs)
		if !s.ready {
			s.early = append(s.early, text)
			return nil
		}
		s.line(text)
		return nil
	}
	s.line(s.record(r.Level, r.Message, attrs))
	return nil
}

// record returns a record as a line.
func (s *screen) record(level slog.Level, message string, attrs []slog.Attr) string {
	text := printable(message)
	switch {
	case level >= slog.LevelError:
		text = s.paint.Paint(console.Red, "✗ "+text)
	case level >= slog.LevelWarn:
		text = s.paint.Paint(console.Yellow, "! "+text)
	case level < slog.LevelInfo:
		text = s.paint.Paint(console.Dim, text)
	}
	for _, a := range attrs {
		text += " " + a.Key + "=" + printable(a.Value.Resolve().String())
	}
	return text
}

// printable returns text on one line, without what a terminal would take for commands.
func printable(text string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == '\n' || r == '\t':
			return ' '
		case r < ' ' || r >= 0x7f && r < 0xa0 || r == '\u2028' || r == '\u2029':
			return '�'
		}
		return r
	}, text)
}

func valueOf(attrs []slog.Attr, key string) string {
	i := slices.IndexFunc(attrs, func(a slog.Attr) bool { return a.Key == key })
	if i < 0 {
		return ""
	}
	return attrs[i].Value.Resolve().String()
}

// tuned describes what calibration has chosen for a model.
func tuned(attrs []slog.Attr) string {
	number := func(key, one string) string {
		n := valueOf(attrs, key)
		if n == "1" {
			return "1 " + one
		}
		return n + " " + strings.Replace(one+"s", "batchs", "batches", 1)
	}
	return fmt.Sprintf("tuned %s: best throughput with batches of %s, %s × %s", printable(valueOf(attrs, "model")), number("batch", "row"), number("instances", "instance"), number("threads", "thread"))
}

// line writes a line, which wraps to the width of the terminal. A person may have closed
// the terminal; the server goes on.
func (s *screenState) line(text string) {
	_, _ = io.WriteString(s.out, strings.Join(console.Wrap("  ", text, s.width, 4), "\n")+"\n")
}

// A startup is what a server says of itself when it is ready.
type startup struct {
	took     time.Duration
	models   []startupModel
	requests map[string]string // files with a request for a model, by its name

	encrypted bool // the HTTP ports take encrypted connections only
}

// scheme is that of the addresses of HTTP ports.
func (up *startup) scheme() string {
	if up.encrypted {
		return "https://"
	}
	return "http://"
}

type startupModel struct {
	name    string
	problem string // why it is not ready; "" if it is
	inputs  []client.TensorMetadata
	outputs []client.TensorMetadata
	explain *explain.Model // nil if it is not ready
}

// begin says that the server starts.
func (s *screen) begin(cores int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.line(s.paint.Paint(console.Bold, "Shoal "+version) + fmt.Sprintf(" · %d cores · loading models", cores))
}

// maxModels is the number of models that the start-up lines show.
const maxModels = 10

// show writes the start-up lines.
func (s *screen) show(up startup) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, m := range up.models {
		if i == maxModels {
			s.line(fmt.Sprintf(`and %d more models; "shoal ls" lists them`, len(up.models)-i))
			break
		}
		if m.problem != "" {
			s.line(s.paint.Paint(console.Red, "✗ "+m.name) + " " + printable(m.problem))
			continue
		}
		s.line(s.paint.Paint(console.Green, "✓ ") + s.paint.Paint(console.Bold, m.name) + " " + signature(m.inputs, m.outputs) + " · " + sharing(m.explain))
	}
	for _, text := range s.early {
		s.line(text)
	}
	s.ready, s.early = true, nil
	var at []string
	for i := 0; i+1 < len(s.addresses); i += 2 {
		at = append(at, s.address(s.addresses[i], s.addresses[i+1], up.scheme()))
	}
	s.line(s.paint.Paint(console.Green, "Ready") + " in " + shortDuration(up.took) + ": " + strings.Join(at, " · "))
	if try := s.try(up); try != "" {
		s.line("Try: " + s.paint.Paint(console.Bold, try))
	}
}

// address returns an address as a person can use it, with its protocol.
func (s *screenState) address(protocol, address, scheme string) string {
	switch protocol {
	case "http":
		return s.paint.Paint(console.Bold, scheme+address)
	case "grpc":
		return "gRPC " + s.paint.Paint(console.Bold, address)
	case "inference", "management":
		return protocol + " " + s.paint.Paint(console.Bold, scheme+address)
	case "metrics":
		return protocol + " " + s.paint.Paint(console.Bold, scheme+address+"/metrics")
	}
	return protocol + " " + s.paint.Paint(console.Bold, address)
}

// sharing describes whether requests may share a batch.
func sharing(m *explain.Model) string {
	switch {
	case m.Batching.Safety.Verdict == explain.Unsafe:
		return "one request at a time, because rows are not independent"
	case m.Batching.Combines:
		return fmt.Sprintf("rows can share a batch, up to %d", m.Batching.MaxRows)
	}
	return "one request at a time"
}

// try returns a command that sends a request to the first model that is ready.
func (s *screen) try(up startup) string {
	i := slices.IndexFunc(up.models, func(m startupModel) bool { return m.problem == "" })
	h := slices.Index(s.addresses, "http")
	if i < 0 || h < 0 {
		return ""
	}
	m := up.models[i]
	words := []string{"shoal infer", m.name, "--random"}
	file, known := up.requests[m.name]
	if known {
		words = []string{"shoal infer", m.name, "--json", file, "--classes", "3"}
	}
	for _, in := range m.inputs {
		if known || len(in.Shape) < 2 || !slices.Contains(in.Shape[1:], -1) {
			continue
		}
		var dims []string
		for _, d := range in.Shape[1:] {
			if d < 0 {
				d = 16 // any size
			}
			dims = append(dims, fmt.Sprint(d))
		}
		words = append(words, "--shape", in.Name+":"+strings.Join(dims, ","))
	}
	switch address := s.addresses[h+1]; {
	case up.encrypted:
		words = append(words, "-u", up.scheme()+address)
	case address != "127.0.0.1:8000":
		words = append(words, "-u", address)
	}
	return strings.Join(words, " ")
}
