package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/shoal-serving/shoal/client"
	"github.com/shoal-serving/shoal/internal/bench"
	"github.com/shoal-serving/shoal/internal/engine/onnx/onnxruntime"
	"github.com/shoal-serving/shoal/test/bare"
	"github.com/shoal-serving/shoal/test/measure"
)

// patience is how long a server may take to answer for the first time.
const patience = 90 * time.Second

// calm is how long Shoal may take to find out how a model is best run.
const calm = 6 * time.Minute

// showings are requests after which Shoal knows what they look like.
const showings = 64

// A run measures what is missing.
type run struct {
	*results
	folder string // for the page, logs and results
	root   string
	window time.Duration // of a measurement, which has three after one that does not count
	rounds int           // in turn, of what is close
	until  time.Time     // nothing begins after it
	log    io.Writer
}

// errTime says that there is more to measure.
var errTime = errors.New("the time is over: run it again to go on")

func (r *run) timeLeft() error {
	if time.Now().After(r.until) {
		return errTime
	}
	return nil
}

func (r *run) say(format string, args ...any) {
	_, _ = fmt.Fprintf(r.log, "%s %s\n", time.Now().Format("15:04:05"), fmt.Sprintf(format, args...))
}

// subject measures all about one model: the bare engine, all servers once, and then
// those that are close to what is promised, in turn.
func (r *run) subject(ctx context.Context, m *subject, all []*server) error {
	if err := r.timeLeft(); err != nil {
		return err
	}
	if err := r.bareEngine(m); err != nil {
		return err
	}
	for _, s := range all {
		if err := r.first(ctx, m, s); err != nil {
			return err
		}
	}
	return r.again(ctx, m, all)
}

// bareEngine fills in what the model answers, and measures it without a server.
func (r *run) bareEngine(m *subject) error {
	engine, err := onnxruntime.Open(onnxruntime.Options{Library: filepath.Join(r.root, "lib/libonnxruntime.so.1")})
	if err != nil {
		return fmt.Errorf("%w: run make deps", err)
	}
	defer engine.Close()
	model := bare.Open(engine, filepath.Join(r.root, "models"), m.name)
	defer model.Close()
	if m.in, err = model.Inputs(1, 1); err != nil {
		return fmt.Errorf("%w: run make models", err)
	}
	if m.out, err = model.Run(m.in); err != nil {
		return err
	}
	if _, ok := r.bare(m.name); ok {
		return nil
	}
	var found []bare.Result
	for _, s := range bare.Settings([]int{1, 8, 32}, runtime.NumCPU()) {
		result, err := model.Measure(s, r.window)
		if err != nil {
			return err
		}
		found = append(found, result)
	}
	best := bare.Best(found)
	r.say("%s, bare engine: %.0f rows/s (%v)", m.name, best.RowsPerSecond, best.Setting)
	return r.add(line{
		Kind: kindBare, cell: cell{Model: m.name}, Throughput: best.RowsPerSecond, Text: best.Setting.String(),
		P50: found[0].Takes, ServerCPU: best.CPU / time.Duration(best.Rows),
	})
}

// first looks at each cell of a server once.
func (r *run) first(ctx context.Context, m *subject, s *server) error {
	missing := slices.DeleteFunc(cells(m.name), func(c cell) bool {
		_, ok := r.pass(c, s.name, 0)
		return ok || s.wires[c.Protocol] == nil
	})
	if _, absent := r.absent(m.name, s.name); absent || len(missing) == 0 {
		return nil
	}
	if err := r.timeLeft(); err != nil {
		return err
	}
	up, err := r.up(ctx, m, s)
	if err != nil {
		return r.miss(ctx, m, s, err)
	}
	defer up.stop()
	r.say("%s, %s: answers after %.1f s", m.name, s.name, up.took.Seconds())
	for _, c := range missing {
		if err := r.measure(ctx, up, c, 0); err != nil && (s.ours || ctx.Err() != nil || up.over()) {
			return r.miss(ctx, m, s, err)
		} else if err != nil {
			r.say("%v, %s: %v", c, s.name, err)
			if err := r.add(line{Kind: kindPass, cell: c, Server: s.name, Text: err.Error()}); err != nil {
				return err
			}
		}
	}
	return r.add(line{Kind: kindStart, cell: cell{Model: m.name}, Server: s.name, StartUp: up.took, Memory: up.memory()})
}

// miss notes that a server cannot be measured with a model, and goes on without it.
// One of ours that cannot is an error.
func (r *run) miss(ctx context.Context, m *subject, s *server, err error) error {
	if s.ours || ctx.Err() != nil {
		return fmt.Errorf("%s, %s: %w", m.name, s.name, err)
	}
	r.say("%s, %s: %v", m.name, s.name, err)
	return r.add(line{Kind: kindAbsent, cell: cell{Model: m.name}, Server: s.name, Text: err.Error()})
}

// again measures what is close once more, so often: Shoal and all peers of a cell in
// turn, each round beginning with another one.
func (r *run) again(ctx context.Context, m *subject, all []*server) error {
	promises := gates(r.results, untouched, []*subject{m}, all)
	running := map[string]*started{}
	defer func() {
		for _, up := range running {
			up.stop()
		}
	}()
	for _, c := range cells(m.name) {
		names := rivals(promises, c)
		if len(names) == 0 {
			continue
		}
		names = append([]string{untouched}, names...)
		for round := range r.rounds {
			for side := range measure.Turn(round, len(names)) {
				name := names[side]
				if _, ok := r.pass(c, name, round+1); ok {
					continue
				}
				if err := r.timeLeft(); err != nil {
					return err
				}
				if running[name] == nil {
					up, err := r.up(ctx, m, byName(all, name))
					if err != nil {
						return fmt.Errorf("%s, %s, a second time: %w", m.name, name, err)
					}
					running[name] = up
				}
				if err := r.measure(ctx, running[name], c, round+1); err != nil {
					return fmt.Errorf("%v, %s: %w", c, name, err)
				}
			}
		}
	}
	return nil
}

// troubles has the servers brought into trouble, as far as that was not done yet.
func (r *run) troubles(ctx context.Context) error {
	program, err := os.Executable()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithDeadline(ctx, r.until)
	defer cancel()
	cmd := exec.CommandContext(ctx, "python3", "test/compare/behaviours.py", "--program", program, "--keep", filepath.Join(r.folder, troublesFile))
	cmd.Dir, cmd.Stdout, cmd.Stderr = r.root, r.log, r.log
	if err := cmd.Run(); err != nil {
		return errors.Join(fmt.Errorf("behaviours.py: %w", err), r.timeLeft())
	}
	return nil
}

// A started server answers.
type started struct {
	*process
	*server
	*launch
	took time.Duration // until the first right answer
}

// stop ends it, and removes what it wrote.
func (s *started) stop() {
	s.process.stop()
	_ = os.RemoveAll(s.folder) // what is left of it is in /tmp
}

// up installs a server if it is not there, and starts it.
func (r *run) up(ctx context.Context, m *subject, s *server) (up *started, err error) {
	if err := r.install(ctx, s); err != nil {
		return nil, err
	}
	l := &launch{subject: m, root: r.root, ports: freePorts(5)}
	// Ray wants a short path.
	if l.folder, err = os.MkdirTemp("", "shoal-compare-"); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			_ = os.RemoveAll(l.folder) // the error is what matters
		}
	}()
	if err := s.prepare(l); err != nil {
		return nil, err
	}
	began := time.Now()
	logFile := filepath.Join(r.folder, "logs", strings.ReplaceAll(s.name+" "+m.name, " ", "-")+".log")
	p, err := start(l.args, l.env, l.folder, logFile)
	if err != nil {
		return nil, err
	}
	up = &started{process: p, server: s, launch: l}
	if err := up.await(ctx, began); err != nil {
		p.stop()
		return nil, err
	}
	return up, nil
}

func (r *run) install(ctx context.Context, s *server) error {
	for _, get := range [][]string{{"tools/get-numpy", packages, "onnxruntime==1.30.0"}, s.get} {
		if len(get) == 0 || s.ours {
			continue
		}
		cmd := exec.CommandContext(ctx, filepath.Join(r.root, get[0]), get[1:]...)
		cmd.Dir = r.root
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("%s does not install it: %w\n%s", get[0], err, bytes.TrimSpace(out))
		}
	}
	return nil
}

// await asks until the answer is right, over every protocol. The time until the
// first of them is that of the start.
func (s *started) await(ctx context.Context, began time.Time) error {
	registered := s.register == ""
	var last error
	for ctx.Err() == nil {
		switch {
		case s.over():
			return fmt.Errorf("it ended by itself:\n%s", s.tail())
		case time.Since(began) > patience:
			return fmt.Errorf("it does not answer within %v: %w\n%s", patience, last, s.tail())
		}
		if !registered {
			_, _, last = ask(ctx, protocolHTTP, bench.Raw{Address: "127.0.0.1:" + s.port(2), Path: s.register})
			registered = last == nil
		}
		if registered {
			if last = s.check(ctx, protocolHTTP); last == nil {
				break
			}
		}
		time.Sleep(20 * time.Millisecond)
	}
	s.took = time.Since(began)
	if err := s.settle(ctx, began); err != nil {
		return err
	}
	if s.wires[protocolGRPC] != nil {
		return s.check(ctx, protocolGRPC)
	}
	return ctx.Err()
}

// settle waits until a server runs as it finds best, if it finds that out. It is shown
// what requests look like if it was measured with others.
func (s *started) settle(ctx context.Context, began time.Time) error {
	shown := false
	for s.settled != nil && ctx.Err() == nil {
		text, err := os.ReadFile(s.process.log)
		if err != nil {
			return err
		}
		measured, known := s.settled(string(text))
		switch {
		case measured && known:
			return nil
		case time.Since(began) > calm:
			return fmt.Errorf("the model is not measured within %v:\n%s", calm, s.tail())
		case measured && !shown:
			shown = true
			for range showings {
				if err := s.check(ctx, protocolHTTP); err != nil {
					return err
				}
			}
		}
		time.Sleep(50 * time.Millisecond)
	}
	return ctx.Err()
}

// raw returns the request in the server's words.
func (s *started) raw(protocol string) (bench.Raw, error) {
	w := s.wires[protocol]
	header, body, err := w.encode(s.in)
	port := 0
	if protocol == protocolGRPC {
		port = 1
	}
	return bench.Raw{Address: "127.0.0.1:" + s.port(port), Path: w.path, Header: header, Body: body}, err
}

// connect returns a caller that sends the request.
func (s *started) connect(protocol string) (bench.Caller, error) {
	raw, err := s.raw(protocol)
	if err != nil || protocol == protocolHTTP {
		return bench.NewRawHTTP(raw), err
	}
	return bench.NewRawGRPC(raw)
}

// check asks once, and compares the answer with the bare engine's.
func (s *started) check(ctx context.Context, protocol string) error {
	if s.wires[protocol].decode == nil {
		return s.checkKServe(ctx, protocol)
	}
	raw, err := s.raw(protocol)
	if err != nil {
		return err
	}
	header, body, err := ask(ctx, protocol, raw)
	if err != nil {
		return err
	}
	answer, err := s.wires[protocol].decode(header, body)
	if err != nil {
		return err
	}
	return same(answer, s.out[0].Data)
}

// checkKServe does so with a server that speaks KServe v2.
func (s *started) checkKServe(ctx context.Context, protocol string) (err error) {
	connect, port := client.NewHTTP, s.port(0)
	if protocol == protocolGRPC {
		connect, port = client.NewGRPC, s.port(1)
	}
	c, err := connect("127.0.0.1:"+port, client.Options{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	resp, err := c.Infer(ctx, &client.Request{Model: modelName, Inputs: s.in})
	if err != nil {
		return err
	}
	if len(resp.Outputs) == 0 {
		return errors.New("the answer has no output")
	}
	return same(resp.Outputs[0].Data, s.out[0].Data)
}

// ask sends one request with Go's own clients, to a server that does not speak KServe v2.
func ask(ctx context.Context, protocol string, raw bench.Raw) (http.Header, []byte, error) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	if protocol == protocolGRPC {
		return askGRPC(ctx, raw)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+raw.Address+raw.Path, bytes.NewReader(raw.Body))
	if err != nil {
		return nil, nil, err
	}
	for l := range strings.Lines(raw.Header) {
		name, value, _ := strings.Cut(strings.TrimSpace(l), ": ")
		req.Header.Set(name, value)
	}
	resp, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(req)
	if err != nil {
		return nil, nil, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("answered with %s: %.200s", resp.Status, body)
	}
	return resp.Header, body, err
}

// askGRPC sends a message that is encoded: to a message without fields, all of it is
// unknown, and is kept as it is.
func askGRPC(ctx context.Context, raw bench.Raw) (http.Header, []byte, error) {
	var in, out emptypb.Empty
	if err := proto.Unmarshal(raw.Body, &in); err != nil {
		return nil, nil, err
	}
	conn, err := grpc.NewClient(raw.Address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return nil, nil, err
	}
	defer func() { _ = conn.Close() }() // the answer is there
	if err := conn.Invoke(ctx, raw.Path, &in, &out, grpc.WaitForReady(true)); err != nil {
		return nil, nil, err
	}
	return nil, out.ProtoReflect().GetUnknown(), nil
}

// measure has so many clients ask for a while, and keeps what came of it.
func (r *run) measure(ctx context.Context, s *started, c cell, round int) error {
	caller, err := s.connect(c.Protocol)
	if err != nil {
		return err
	}
	counted := &counter{Caller: caller}
	b := &bench.Bench{
		Targets:   []bench.Target{{Model: c.Model, Caller: counted, Rows: []int{1}}},
		WarmUp:    2, // answered when those are who were left behind by the load before
		Interval:  r.interval(c),
		MaxTrials: 4, // of which the last three count
		Rule:      bench.Rule{Percent: -100},
	}
	var level bench.Level
	once := func() error {
		return b.Run(ctx, []bench.Load{{Concurrency: c.Clients}}, func(l bench.Level) { level = l })
	}
	server, client := s.cpu(), ownCPU()
	if err = once(); err != nil && ctx.Err() == nil {
		b.Interval *= 5 // it may be so slow that nobody was answered
		err = once()
	}
	server, client = s.cpu()-server, ownCPU()-client
	if err = errors.Join(err, counted.Close(), ctx.Err()); err != nil {
		return err
	}
	l := line{Kind: kindPass, cell: c, Server: s.server.name, Round: round, Throughput: level.Client.InfersPerSecond, Answers: level.Client.Requests, Failed: level.Client.Failed}
	for _, p := range level.Client.Percentiles {
		switch p.Percent {
		case 50:
			l.P50 = p.Latency
		case 99:
			l.P99 = p.Latency
		}
	}
	if n := time.Duration(counted.answers.Load()); n > 0 {
		l.ServerCPU, l.ClientCPU = server/n, client/n
	}
	if l.Failed > 0 {
		l.Text = level.Client.Error
		if s.ours {
			return fmt.Errorf("%v: %d requests of Shoal failed: %s", c, l.Failed, l.Text)
		}
	}
	r.say("%v, %s: %.0f/s, p50 %v, p99 %v%s", c, s.server.name, l.Throughput, l.P50.Round(time.Microsecond), l.P99.Round(time.Microsecond), map[bool]string{true: fmt.Sprintf(", round %d", round)}[round > 0])
	return r.add(l)
}

// interval is longer where a model is so slow that few would be answered: each
// client should be four times in all, by a server as fast as the bare engine.
func (r *run) interval(c cell) time.Duration {
	one, ok := r.bare(c.Model)
	if !ok {
		return r.window
	}
	return max(r.window, time.Duration(float64(4*c.Clients)/one.Throughput/3*float64(time.Second)))
}

// A counter counts the answers, those too that come before and after the windows:
// CPU time is measured over all of them.
type counter struct {
	bench.Caller
	answers atomic.Int64
}

// Infer implements [bench.Caller].
func (c *counter) Infer(ctx context.Context, request int) error {
	err := c.Caller.Infer(ctx, request)
	if err == nil {
		c.answers.Add(1)
	}
	return err
}

func ownCPU() time.Duration {
	var used syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &used) != nil {
		return 0 // it fails for no reason that could be met here
	}
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}
