package main

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/shoal-serving/shoal/internal/bench"
	"github.com/shoal-serving/shoal/test/measure"
)

// Kinds of lines.
const (
	kindPass   = "pass"   // clients asked a server for a while
	kindStart  = "start"  // a server was started
	kindAbsent = "absent" // a server did not start, or does not answer as it should
	kindBare   = "bare"   // the bare engine, without a server
)

// A line is one thing that was found out. Lines are kept in a file, so that what is
// measured is not measured again.
type line struct {
	Kind  string    `json:"kind"`
	At    time.Time `json:"at"`
	Under string    `json:"under"` // what it was measured with
	cell
	Server string `json:"server,omitempty"`
	Round  int    `json:"round,omitempty"` // of those that are measured in turn; 0 is the first look

	Throughput float64       `json:"throughput,omitempty"` // requests a second; of the bare engine rows
	P50        time.Duration `json:"p50_ns,omitempty"`
	P99        time.Duration `json:"p99_ns,omitempty"`
	Answers    int           `json:"answers,omitempty"`
	Failed     int           `json:"failed,omitempty"`
	ServerCPU  time.Duration `json:"server_cpu_ns,omitempty"` // for a request
	ClientCPU  time.Duration `json:"client_cpu_ns,omitempty"`

	StartUp time.Duration `json:"start_up_ns,omitempty"`
	Memory  int64         `json:"memory,omitempty"` // bytes, after all clients have asked
	Text    string        `json:"text,omitempty"`   // why it is absent, or how the bare engine was run
}

// A cell is one load on one model.
type cell struct {
	Model    string `json:"model"`
	Protocol string `json:"protocol,omitempty"`
	Clients  int    `json:"clients,omitempty"`
}

func (c cell) String() string { return fmt.Sprintf("%s %s %d", c.Model, c.Protocol, c.Clients) }

// Results are all lines, those of earlier runs too.
type results struct {
	under map[string]string // by server, what its lines have to be measured with
	log   *measure.Log[line]
	lines []line
}

// openResults reads what was measured before with the same programs. Peers stay
// the same when Shoal changes; what was measured in turn does not.
func openResults(file, binary string, window time.Duration) (*results, error) {
	program, err := os.ReadFile(binary)
	if err != nil {
		return nil, fmt.Errorf("%w: run make build", err)
	}
	sum := sha256.Sum256(program)
	r := &results{under: map[string]string{"": window.String(), "shoal": window.String() + " " + hex.EncodeToString(sum[:6])}}
	if r.log, err = measure.OpenLog(file, func(l line) bool { return l.Under == r.underOf(l) }); err != nil {
		return nil, err
	}
	r.lines = slices.Clone(r.log.All())
	return r, nil
}

func (r *results) underOf(l line) string {
	if l.Round > 0 || slices.ContainsFunc(servers(), func(s *server) bool { return s.ours && s.name == l.Server }) {
		return r.under["shoal"]
	}
	return r.under[""]
}

// add keeps a line.
func (r *results) add(l line) error {
	l.At = time.Now().Truncate(time.Second)
	l.Under = r.underOf(l)
	r.lines = append(r.lines, l)
	return r.log.Add(l)
}

// pass returns what was measured in a cell in a round.
func (r *results) pass(c cell, server string, round int) (line, bool) {
	return r.find(func(l line) bool { return l.Kind == kindPass && l.cell == c && l.Server == server && l.Round == round })
}

// absent returns why a server is not measured with a model.
func (r *results) absent(model, server string) (string, bool) {
	l, ok := r.find(func(l line) bool { return l.Kind == kindAbsent && l.Model == model && l.Server == server })
	return l.Text, ok
}

// starts returns all starts of a server.
func (r *results) starts(server string) (all []line) {
	for _, l := range r.lines {
		if l.Kind == kindStart && l.Server == server {
			all = append(all, l)
		}
	}
	return all
}

func (r *results) bare(model string) (line, bool) {
	return r.find(func(l line) bool { return l.Kind == kindBare && l.Model == model })
}

func (r *results) find(is func(line) bool) (line, bool) {
	if i := slices.IndexFunc(r.lines, is); i >= 0 {
		return r.lines[i], true
	}
	return line{}, false
}

// A figure is one that two servers are compared by.
type figure struct {
	name  string
	of    func(line) float64
	lower bool // less of it is better
}

var (
	throughput = figure{"throughput", func(l line) float64 { return l.Throughput }, false}
	p99        = figure{"p99", func(l line) float64 { return l.P99.Seconds() }, true}
)

// A ratio is Shoal's figure as a multiple of a peer's.
type ratio struct {
	mid, low, high float64
	pairs          []float64 // those that were measured in turn; none means that each was looked at once
}

func (r ratio) String() string {
	if len(r.pairs) == 0 {
		return fmt.Sprintf("%.2f", r.mid)
	}
	return fmt.Sprintf("%.2f [%.2f, %.2f]", r.mid, r.low, r.high)
}

// ratio compares the two by what was measured in turn, or else by the first look.
func (r *results) ratio(f figure, c cell, ours, peer string) (ratio, bool) {
	var all []float64
	for round := 1; ; round++ {
		a, ok := r.pass(c, ours, round)
		b, okToo := r.pass(c, peer, round)
		if !ok && !okToo {
			break
		}
		if ok && okToo {
			all = append(all, f.of(a)/f.of(b))
		}
	}
	if len(all) > 0 {
		mid, low, high := bench.Median(all)
		return ratio{mid, low, high, all}, true
	}
	a, ok := r.pass(c, ours, 0)
	b, okToo := r.pass(c, peer, 0)
	if !ok || !okToo || a.Throughput == 0 || b.Throughput == 0 {
		return ratio{}, false
	}
	v := f.of(a) / f.of(b)
	return ratio{v, v, v, nil}, true
}
