package main

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"net/http"
	"slices"
	"strings"
	"time"

	tea "charm.land/bubbletea/v2"
	"github.com/spf13/cobra"

	"github.com/shoal-serving/shoal/internal/console"
	"github.com/shoal-serving/shoal/internal/pause"
)

func newTopCommand() *cobra.Command {
	var address string
	var credentials credentialFlags
	var once bool
	cmd := &cobra.Command{
		Use:   "top",
		Short: "Watch the models of a running server",
		Long: `Top shows the models of a running Shoal server with their rates, latencies, queues and batches, and refreshes them twice
a second. Figures are those of the last ten seconds. Keys sort the table: r by requests per second, l by latency, u by queue,
n by name; q ends it.`,
		Example: `  shoal top
  shoal top -u models.example.org:8000
  shoal top --once`,
		Args: arguments(0, 0, "top takes no arguments; name the server with -u"),
		RunE: func(cmd *cobra.Command, _ []string) error {
			s, err := newTopStream(cmp.Or(address, "localhost:8000"), &credentials)
			if err != nil {
				return err
			}
			if once || !console.IsTerminal(cmd.OutOrStdout()) {
				return s.printOnce(cmd.Context(), cmd.OutOrStdout())
			}
			return s.watch(cmd.Context(), cmd.OutOrStdout())
		},
	}
	f := cmd.Flags()
	f.StringVarP(&address, "url", "u", "", "`host:port` of the server's HTTP port (default localhost:8000)")
	f.BoolVar(&once, "once", false, "print the table after two seconds, and end; the default if the output is not a terminal")
	topic(f, "Server")
	credentials.define(f)
	topic(f, "Credentials")
	return cmd
}

// A topStream reads the events of a server's dashboard.
type topStream struct {
	address string
	url     string
	http    *http.Client
}

func newTopStream(address string, credentials *credentialFlags) (*topStream, error) {
	h, scheme, err := credentials.httpClient(address)
	if err != nil {
		return nil, err
	}
	host := strings.TrimSuffix(strings.TrimPrefix(strings.TrimPrefix(address, "https://"), "http://"), "/")
	return &topStream{address: host, url: scheme + "://" + host + "/dashboard/events", http: h}, nil
}

// maxTopEvent is the longest event that is read: that of tens of thousands of models.
const maxTopEvent = 64 << 20

// read calls event for each event, until the stream ends.
func (s *topStream) read(ctx context.Context, query string, event func(name string, data []byte) error) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.url+query, http.NoBody)
	if err != nil {
		return misuse{fmt.Errorf("-u: %q is not an address: expected host:port, such as localhost:8000", s.address)}
	}
	resp, err := s.http.Do(req)
	if err != nil {
		return fmt.Errorf("no server answers at %s: %w", s.address, err)
	}
	defer func() { _ = resp.Body.Close() }() // it was only read
	if resp.StatusCode != http.StatusOK || !strings.HasPrefix(resp.Header.Get("Content-Type"), "text/event-stream") {
		text, _ := io.ReadAll(io.LimitReader(resp.Body, 1000)) // what has arrived will do
		hint := "top needs a Shoal server with --allow-dashboard"
		if resp.StatusCode == http.StatusUnauthorized || resp.StatusCode == http.StatusForbidden {
			hint = "set --token or " + tokenVariable + " to an API key or a token that may do this"
		}
		return fmt.Errorf("the server at %s answers %s: %s; %s", s.address, resp.Status, printable(string(bytes.TrimSpace(text))), hint)
	}
	lines := bufio.NewScanner(resp.Body)
	lines.Buffer(nil, maxTopEvent)
	name := ""
	for lines.Scan() {
		if text, ok := bytes.CutPrefix(lines.Bytes(), []byte("event: ")); ok {
			name = string(text)
		} else if text, ok := bytes.CutPrefix(lines.Bytes(), []byte("data: ")); ok {
			if err := event(name, text); err != nil {
				return err
			}
		}
	}
	if err := lines.Err(); err != nil {
		return fmt.Errorf("the server at %s stopped in the middle of its answer: %w", s.address, err)
	}
	return nil
}

// printOnce prints the table after some events.
func (s *topStream) printOnce(ctx context.Context, out io.Writer) error {
	ctx, cancel := context.WithTimeout(ctx, shortTimeout)
	defer cancel()
	view := topView{address: s.address, width: console.Width(out), sort: 'r'}
	if err := s.read(ctx, "?count=5", view.event); err != nil {
		return err
	}
	_, err := io.WriteString(out, strings.Join(view.lines(), "\n")+"\n")
	return err
}

// watch shows the table until the user ends it.
func (s *topStream) watch(ctx context.Context, out io.Writer) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	view := &topView{address: s.address, width: 80, sort: 'r'}
	program := tea.NewProgram(topProgram{view: view}, tea.WithContext(ctx), tea.WithOutput(out))
	done := make(chan error, 1) // so that the reader can end when the program has
	go func() {
		done <- s.follow(ctx, func(name string, data []byte) error {
			program.Send(topEvent{name, bytes.Clone(data)})
			return nil
		})
		program.Quit()
	}()
	_, err := program.Run()
	stop()
	failed := <-done
	if (errors.Is(err, tea.ErrProgramKilled) || errors.Is(err, tea.ErrInterrupted)) && !errors.Is(err, tea.ErrProgramPanic) {
		err = nil
	}
	if errors.Is(failed, context.Canceled) {
		failed = nil
	}
	return errors.Join(err, failed, view.failed)
}

// follow opens the stream again when it ends: the server ends each after some minutes.
func (s *topStream) follow(ctx context.Context, event func(string, []byte) error) error {
	for {
		if err := s.read(ctx, "", event); err != nil || ctx.Err() != nil {
			return err
		}
		_ = pause.For(ctx, time.Second/5)
	}
}

type topEvent struct {
	name string
	data []byte
}

// topProgram is the view of a terminal.
type topProgram struct{ view *topView }

// Init implements [tea.Model].
func (topProgram) Init() tea.Cmd { return nil }

// Update implements [tea.Model].
func (p topProgram) Update(msg tea.Msg) (tea.Model, tea.Cmd) {
	switch msg := msg.(type) {
	case tea.WindowSizeMsg:
		if msg.Width > 0 && msg.Height > 0 { // a terminal may not know its size
			p.view.width, p.view.height = msg.Width, msg.Height
		}
	case tea.KeyPressMsg:
		switch key := msg.String(); key {
		case "q", "ctrl+c", "esc":
			return p, tea.Quit
		case "r", "l", "u", "n":
			p.view.sort = rune(key[0])
		}
	case topEvent:
		if err := p.view.event(msg.name, msg.data); err != nil {
			p.view.failed = err
			return p, tea.Quit
		}
	}
	return p, nil
}

// View implements [tea.Model].
func (p topProgram) View() tea.View {
	lines := p.view.lines()
	if h := p.view.height; h > 0 && len(lines) > h {
		lines = lines[:h]
	}
	v := tea.NewView(strings.Join(lines, "\n"))
	v.AltScreen = true
	return v
}

// A topModel is what the events say of a version.
type topModel struct {
	Name, Version, State, Reason string
	Serving                      bool
	Instances, Alive, Queue      int
	Success, Batches             uint64
	BatchRows                    uint64 `json:"batch_rows"`
	Failed                       map[string]uint64
	Latency                      []uint64
}

func (m *topModel) failures() (n uint64) {
	for _, count := range m.Failed {
		n += count
	}
	return n
}

// restarted reports whether the model was loaded again before next: its counters begin at 0, or it
// has none while it loads.
func (m *topModel) restarted(next *topModel) bool {
	return m.Success > next.Success || m.Batches > next.Batches || m.failures() > next.failures() || len(m.Latency) != len(next.Latency)
}

// A topSample is a model at a time, in milliseconds.
type topSample struct {
	at    int64
	model topModel
}

// A topView is the state of the table.
type topView struct {
	address       string
	width, height int
	sort          rune  // a key
	failed        error // that ended the view; nil if the user does

	version  string
	bounds   []float64 // of the buckets of latency, in milliseconds
	at       int64     // of the last figures
	inFlight int
	names    []string
	history  map[string][]topSample // of the last topWindow, oldest first
}

// topWindow is how long rates are measured over, in milliseconds.
const topWindow = 10_000

func (v *topView) event(name string, data []byte) error {
	if err := v.read(name, data); err != nil {
		return fmt.Errorf("the server at %s sent something that this version of shoal cannot read: %w", v.address, err)
	}
	return nil
}

func (v *topView) read(name string, data []byte) error {
	switch name {
	case "hello":
		var hello struct {
			Version string
			Bounds  []float64 `json:"bounds_ms"`
		}
		if err := json.Unmarshal(data, &hello); err != nil {
			return err
		}
		v.version, v.bounds = hello.Version, hello.Bounds
	case "figures":
		var figures struct {
			At       int64
			InFlight int `json:"in_flight"`
			Names    []string
			Models   []topModel
		}
		if err := json.Unmarshal(data, &figures); err != nil {
			return err
		}
		v.at, v.inFlight = figures.At, figures.InFlight
		if figures.Names != nil {
			v.names = figures.Names
			v.forget()
		}
		for _, m := range figures.Models {
			v.add(m)
		}
	}
	return nil
}

// forget removes the models that are gone.
func (v *topView) forget() {
	known := make(map[string]bool, len(v.names))
	for _, name := range v.names {
		known[name] = true
	}
	maps.DeleteFunc(v.history, func(name string, _ []topSample) bool { return !known[name] })
}

func (v *topView) add(m topModel) {
	if v.history == nil {
		v.history = map[string][]topSample{}
	}
	key := m.Name + "/" + m.Version
	all := v.history[key]
	if n := len(all); n > 0 && all[n-1].model.restarted(&m) {
		all = nil
	}
	all = append(all, topSample{v.at, m})
	old := 0
	for old < len(all)-1 && all[old+1].at <= v.at-topWindow {
		old++
	}
	v.history[key] = slices.Clone(all[old:])
}

// A topRow is a line of the table.
type topRow struct {
	model              topModel
	rate, failed, size float64
	p50, p99           float64 // milliseconds; NaN if nothing was answered
}

func (v *topView) row(key string) (topRow, bool) {
	all := v.history[key]
	if len(all) == 0 {
		return topRow{}, false
	}
	first, last := all[0], all[len(all)-1]
	for _, s := range all {
		if s.at <= v.at-topWindow {
			first = s
		}
	}
	seconds := max(0.5, float64(min(topWindow, v.at-first.at))/1000)
	r := topRow{model: last.model, size: math.NaN()}
	r.rate = float64(last.model.Success-first.model.Success) / seconds
	r.failed = float64(last.model.failures()-first.model.failures()) / seconds
	if batches := last.model.Batches - first.model.Batches; batches > 0 {
		r.size = float64(last.model.BatchRows-first.model.BatchRows) / float64(batches)
	}
	counts := slices.Clone(last.model.Latency)
	for i, n := range first.model.Latency {
		counts[i] -= n
	}
	r.p50, r.p99 = quantile(counts, v.bounds, 0.5), quantile(counts, v.bounds, 0.99)
	return r, true
}

// quantile finds the bucket that has a quantile, and assumes that values are spread evenly in it.
func quantile(counts []uint64, bounds []float64, q float64) float64 {
	total := uint64(0)
	for _, n := range counts {
		total += n
	}
	below := uint64(0)
	for i, n := range counts {
		if n > 0 && i < len(bounds) && float64(below+n) >= q*float64(total) {
			from := 0.0
			if i > 0 {
				from = bounds[i-1]
			}
			return from + (bounds[i]-from)*(q*float64(total)-float64(below))/float64(n)
		}
		below += n
	}
	return math.NaN()
}

// lines returns the table.
func (v *topView) lines() []string {
	var rows []topRow
	total := 0.0
	for _, key := range v.names {
		if r, ok := v.row(key); ok {
			rows = append(rows, r)
			total += r.rate
		}
	}
	slices.SortStableFunc(rows, func(a, b topRow) int {
		switch v.sort {
		case 'r':
			return cmp.Compare(b.rate, a.rate)
		case 'l':
			return cmp.Compare(b.p99, a.p99)
		case 'u':
			return cmp.Compare(b.model.Queue, a.model.Queue)
		}
		return 0 // by name, as they come
	})
	const figures = 8 + 10 + 10 + 7 + 7 + 8 // columns of the numbers
	name := max(12, v.width-figures-14)
	lines := []string{
		cut(fmt.Sprintf("Shoal %s at %s · %s · %s req/s · %d in flight", v.version, v.address, modelCount(len(rows)), number(total), v.inFlight), v.width),
		"",
		fmt.Sprintf("%-*s %-12s %7s %9s %9s %6s %6s %7s", name, "MODEL", "STATE", "REQ/S", "P50", "P99", "QUEUE", "BATCH", "FAIL/S"),
	}
	for _, r := range rows {
		m := &r.model
		if !m.Serving {
			lines = append(lines, cut(fmt.Sprintf("%-*s %-12s %s", name, cut(m.Name, name), strings.ToLower(m.State), printable(m.Reason)), v.width))
			continue
		}
		state := strings.ToLower(m.State)
		if m.Alive < m.Instances {
			state = fmt.Sprintf("%d of %d", m.Alive, m.Instances)
		}
		lines = append(lines, fmt.Sprintf("%-*s %-12s %7s %9s %9s %6d %6s %7s", name, cut(m.Name, name), state, number(r.rate), millis(r.p50), millis(r.p99), m.Queue, number(r.size), number(r.failed)))
	}
	return append(lines, "", "r l u n: sort by rate, latency, queue, name · q: end")
}

func modelCount(n int) string {
	if n == 1 {
		return "1 model"
	}
	return fmt.Sprintf("%d models", n)
}

// cut returns text in at most width columns.
func cut(text string, width int) string {
	if runes := []rune(text); len(runes) > width {
		return string(runes[:width-1]) + "…"
	}
	return text
}

func number(x float64) string {
	switch {
	case math.IsNaN(x):
		return "-"
	case x == 0 || x >= 10:
		return fmt.Sprintf("%.0f", x)
	}
	return fmt.Sprintf("%.1f", x)
}

func millis(x float64) string {
	switch {
	case math.IsNaN(x):
		return "-"
	case x < 1:
		return fmt.Sprintf("%.2f ms", x)
	case x < 10:
		return fmt.Sprintf("%.1f ms", x)
	}
	return fmt.Sprintf("%.0f ms", x)
}
