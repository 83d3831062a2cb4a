//go:build e2e && linux

package e2e

import (
	"cmp"
	"errors"
	"flag"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/shoal-serving/shoal/client"
	"github.com/shoal-serving/shoal/internal/engine/onnx/onnxtest"
	"github.com/shoal-serving/shoal/test/servertest"
)

var (
	soak     = flag.Duration("soak", 10*time.Second, "how long the soak lasts; from 20m on what the server holds is judged")
	soakSeed = flag.Uint64("soak-seed", 0, "the seed of what happens in it; 0 means a new one")
)

// soakLoad is the load of the soak, relative to what its device can do.
const soakLoad = 0.7

// TestALongLoadChangesNothing keeps a device at 70 % of what it can do while clients cancel and
// misbehave, models are loaded, replaced and unloaded, and workers are killed. Every error is one
// that the test has caused, every answer is right, and in the end the server holds no more than
// before. A tenth of the time nothing goes wrong: then no request fails at all.
func TestALongLoadChangesNothing(t *testing.T) {
	onnxtest.Library(t)
	seed := cmp.Or(*soakSeed, rand.Uint64())
	t.Logf("-soak-seed %d", seed)
	dir := soakRepository(t)
	s := servertest.Start(t, dir, "--log-verbose=0", "--model-control-mode=explicit", "--load-model=*")
	w := newSoakWorld(t, s, dir, seed)
	w.askAll() // so that what is opened for the first requests is open
	capacity := servertest.Crowd{Clients: 16, Sharing: 2, Request: func(int) *client.Request { return w.steady[0].Request }, During: servertest.For(2 * time.Second)}.Run(t, s).PerSecond()
	w.rate = soakLoad * capacity
	w.closeWeb()
	descriptors, workers := w.settled(), len(servertest.Children(s.Cmd.Process.Pid))

	w.soak(*soak/10, false)
	calm := w.right.Load()
	w.soak(*soak-*soak/10, true)

	w.askAll()
	must := []string{workerKilled, modelReplaced, modelUnloaded, modelLoaded}
	if *soak > time.Minute {
		must = slices.Collect(maps.Keys(w.happened))
	}
	w.checkCounts(must...)
	t.Logf("%.0f requests per second, %.0f %% of what the device can do; %d answers are right, %d of them while nothing went wrong; %d errors, all caused by the test", w.rate, 100*soakLoad, w.right.Load(), calm, w.failed.Load())
	if calm < 100 || w.right.Load() < 2*calm {
		t.Error("so few answers show little")
	}
	w.closeWeb()
	servertest.Eventually(t, fmt.Sprintf("%d open descriptors, as before the clients came,", descriptors), func() bool { return w.descriptors() <= descriptors })
	servertest.Eventually(t, fmt.Sprintf("%d workers, as before,", workers), func() bool { return len(servertest.Children(s.Cmd.Process.Pid)) == workers })
	if strings.Contains(s.Log(), "panic") {
		t.Errorf("the server has recovered from a panic:\n%s", s.Log())
	}
	w.checkSamples()
	w.checkGoroutines()
}

// A soakWorld is a misbehavingWorld in which models come and go, too.
type soakWorld struct {
	*misbehavingWorld
	dir       string
	seed      uint64
	rate      float64        // of the steady load, requests per second
	steady    []knownRequest // to the device
	fleeting  []knownRequest // to models that come and go
	failed    atomic.Int64   // errors that the test has caused
	replaced  bool           // by the last turn of comeAndGo
	disturbed disturbances
	samples   []soakSample
}

// A soakSample is what the server held at some time.
type soakSample struct {
	resident    int // KB
	descriptors int
	goroutines  int
}

const (
	workerKilled  = "a worker is killed"
	modelReplaced = "a model is replaced"
	modelUnloaded = "a model is unloaded"
	modelLoaded   = "a model is loaded"
	fleetingCount = 4
)

func fleetingName(i int) string { return fmt.Sprint("fleeting-", i) }

// soakRepository has the models of misbehavingRepository, a device for the steady load, and models
// that come and go: simulated ones, and every second one in ONNX Runtime.
func soakRepository(t *testing.T) string {
	t.Helper()
	dir := misbehavingRepository(t)
	// A test that had to wait for a core sends what was due meanwhile at once.
	const perRow = `dynamic_batching { default_queue_policy { max_queue_size: 10000 } } parameters { key: "per_row_us" value { string_value: "500" } }`
	servertest.AddModel(t, dir, "device", servertest.ONNXModel{Config: servertest.Config(12*time.Millisecond, "1", perRow)})
	for i := range fleetingCount {
		m := servertest.ONNXModel{Config: servertest.Config(time.Millisecond, "1", "dynamic_batching { }")}
		if i%2 == 1 {
			m = servertest.ONNXModel{File: onnxtest.Model("spin"), Config: "backend: \"onnxruntime\"\nmax_batch_size: 8\ndynamic_batching { }\n"}
		}
		servertest.AddModel(t, dir, fleetingName(i), m)
	}
	return dir
}

func newSoakWorld(t *testing.T, s *servertest.Server, dir string, seed uint64) *soakWorld {
	w := &soakWorld{misbehavingWorld: newMisbehavingWorld(t, s), dir: dir, seed: seed, disturbed: disturbances{spans: map[string][]span{}}}
	w.excuses = w.wasDisturbed
	for _, what := range []string{workerKilled, modelReplaced, modelUnloaded, modelLoaded} {
		w.happened[what] = &atomic.Int64{}
	}
	as := func(q knownRequest, model string) knownRequest {
		request := *q.Request
		request.Model = model
		return knownRequest{&request, q.want}
	}
	for _, q := range w.requests {
		switch q.Model {
		case "sim":
			w.steady = append(w.steady, as(q, "device"))
			for i := 0; i < fleetingCount; i += 2 {
				w.fleeting = append(w.fleeting, as(q, fleetingName(i)))
			}
		case "spin":
			for i := 1; i < fleetingCount; i += 2 {
				w.fleeting = append(w.fleeting, as(q, fleetingName(i)))
			}
		}
	}
	return w
}

// soak has everything happen at once for a while: the steady load, other healthy clients, and if
// faults is true all that goes wrong.
func (w *soakWorld) soak(length time.Duration, faults bool) {
	began := time.Now()
	var all sync.WaitGroup
	goes := func() bool { return time.Since(began) < length && !w.t.Failed() }
	run := func(number int, do func(chance *rand.Rand)) {
		chance := rand.New(rand.NewPCG(w.seed, uint64(number)))
		all.Go(func() {
			for goes() {
				do(chance)
			}
		})
	}
	all.Go(func() { w.load(goes) })
	var clients []*client.Client
	dial := func(protocol string) *client.Client {
		c := w.dial(protocol, nil)
		clients = append(clients, c)
		return c
	}
	for i, protocol := range protocols {
		c := dial(protocol)
		run(i, func(chance *rand.Rand) {
			w.askHealthy(c, protocol, w.requests[chance.IntN(len(w.requests))])
			time.Sleep(millis(chance, 100))
		})
	}
	if faults {
		for i := range 3 {
			run(100+i, func(chance *rand.Rand) {
				w.misbehave(w.t.Context(), chance)
				time.Sleep(millis(chance, 100))
			})
		}
		c := dial("gRPC")
		run(200, func(chance *rand.Rand) {
			w.askHealthy(c, "gRPC", w.fleeting[chance.IntN(len(w.fleeting))])
			time.Sleep(millis(chance, 20))
		})
		run(201, w.comeAndGo)
		run(202, w.killWorker)
		for ; goes(); time.Sleep(time.Second) {
			w.samples = append(w.samples, soakSample{w.s.Resident(), w.descriptors(), w.goroutines()})
		}
	}
	all.Wait()
	for _, c := range clients {
		w.close(c)
	}
}

// load sends requests to the device at random times, at the rate of the steady load, over each
// protocol in turn, and does not wait for one before it sends the next.
func (w *soakWorld) load(goes func() bool) {
	chance := rand.New(rand.NewPCG(w.seed, 300))
	clients := map[string]*client.Client{}
	for _, protocol := range protocols {
		clients[protocol] = w.dial(protocol, nil)
	}
	var asking sync.WaitGroup
	next := time.Now()
	for i := 0; goes(); i++ {
		protocol := protocols[i%len(protocols)]
		asking.Go(func() { w.askHealthy(clients[protocol], protocol, w.steady[i%len(w.steady)]) })
		requests := 1.0
		if protocol == "a gRPC stream" {
			requests = 2
		}
		next = next.Add(time.Duration(requests * chance.ExpFloat64() / w.rate * float64(time.Second)))
		time.Sleep(time.Until(next))
	}
	asking.Wait()
	for _, c := range clients {
		w.close(c)
	}
}

func (w *soakWorld) close(c *client.Client) {
	if err := c.Close(); err != nil {
		w.t.Error(err)
	}
}

// comeAndGo replaces a model that serves, at which no request may fail, and in the next turn unloads
// one and loads it again.
func (w *soakWorld) comeAndGo(chance *rand.Rand) {
	time.Sleep(millis(chance, 2000))
	model := fleetingName(chance.IntN(fleetingCount))
	ctx := w.t.Context()
	if w.replaced = !w.replaced; w.replaced {
		file := filepath.Join(w.dir, model, "config.pbtxt")
		config, err := os.ReadFile(file)
		if err == nil { // a comment is a change
			changed, _, _ := strings.Cut(string(config), "\n#")
			err = os.WriteFile(file, fmt.Appendf(nil, "%s\n# %d", changed, chance.Uint64()), 0o644)
		}
		if err == nil {
			err = w.s.Web().Load(ctx, model, client.LoadOptions{})
		}
		w.happened[modelReplaced].Add(1)
		if err != nil {
			w.t.Errorf("%s cannot be replaced: %v", model, err)
		}
		return
	}
	ended := w.disturbed.begin(model)
	defer ended()
	if err := w.s.Web().Unload(ctx, model); err != nil {
		w.t.Errorf("%s cannot be unloaded: %v", model, err)
	}
	w.happened[modelUnloaded].Add(1)
	time.Sleep(millis(chance, 200))
	if err := w.s.Web().Load(ctx, model, client.LoadOptions{}); err != nil {
		w.t.Errorf("%s cannot be loaded again: %v", model, err)
	}
	w.happened[modelLoaded].Add(1)
}

// killWorker kills a worker of the Python model, and waits until that answers again.
func (w *soakWorld) killWorker(chance *rand.Rand) {
	time.Sleep(2*time.Second + millis(chance, 6000))
	workers := servertest.Children(w.s.Cmd.Process.Pid)
	if len(workers) == 0 {
		w.t.Errorf("the Python model has no worker\n%s", w.s.Log())
		return
	}
	ended := w.disturbed.begin(pythonModel)
	defer ended()
	if err := syscall.Kill(workers[chance.IntN(len(workers))], syscall.SIGKILL); err != nil {
		w.t.Error(err)
	}
	w.happened[workerKilled].Add(1)
	c := w.dial("gRPC", nil)
	defer w.close(c)
	q := w.requests[slices.IndexFunc(w.requests, func(q knownRequest) bool { return q.Model == pythonModel })]
	for killed := time.Now(); ; time.Sleep(10 * time.Millisecond) {
		if _, err := c.Infer(w.t.Context(), q.Request); err == nil {
			return
		}
		if time.Since(killed) > time.Minute {
			w.t.Errorf("the Python model does not answer a minute after a worker was killed\n%s", w.s.Log())
			return
		}
	}
}

// pythonModel is the model of leavingRepository that runs in workers.
const pythonModel = "m"

// wasDisturbed reports whether the test has caused an error of a request: its model was away, or
// one of its workers was killed.
func (w *soakWorld) wasDisturbed(q knownRequest, sent time.Time, err error) bool {
	plausible := errors.Is(err, client.NotFound) || errors.Is(err, client.Unavailable)
	if q.Model == pythonModel {
		plausible = strings.Contains(err.Error(), "ended by signal 9")
	}
	if !plausible || !w.disturbed.overlaps(q.Model, sent) {
		return false
	}
	w.failed.Add(1)
	return true
}

// A span is a time in which a model may fail; end is zero while it lasts.
type span struct{ begin, end time.Time }

// disturbances are the times in which models may fail.
type disturbances struct {
	mu    sync.Mutex
	spans map[string][]span // by model
}

// begin begins a disturbance of a model, which ended ends.
func (d *disturbances) begin(model string) (ended func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	i := len(d.spans[model])
	d.spans[model] = append(d.spans[model], span{begin: time.Now()})
	return func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.spans[model][i].end = time.Now()
	}
}

// overlaps reports whether a request that was sent at some time, and has just failed, met a
// disturbance of its model.
func (d *disturbances) overlaps(model string, sent time.Time) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.ContainsFunc(d.spans[model], func(s span) bool { return s.end.IsZero() || s.end.After(sent) })
}

var goroutineCount = regexp.MustCompile(`(?m)^go_goroutines (\d+)$`)

// goroutines returns how many the server has.
func (w *soakWorld) goroutines() int {
	m := goroutineCount.FindStringSubmatch(w.s.MetricsPage())
	if m == nil {
		w.t.Fatal("the page of metrics does not say how many goroutines there are")
	}
	n, err := strconv.Atoi(m[1])
	if err != nil {
		w.t.Fatal(err)
	}
	return n
}

// checkSamples logs how what the server held has changed in the second half. In an hour memory may
// grow by 1 %, and the rest by three.
func (w *soakWorld) checkSamples() {
	if len(w.samples) == 0 {
		return // it failed before
	}
	half := w.samples[len(w.samples)/2:]
	for _, held := range []struct {
		what  string
		of    func(soakSample) int
		least float64 // growth in an hour that is one: a connection more or less is none
	}{
		{"KB of resident memory", func(s soakSample) int { return s.resident }, 0},
		{"open descriptors", func(s soakSample) int { return s.descriptors }, 3},
		{"goroutines", func(s soakSample) int { return s.goroutines }, 3},
	} {
		all, later := medians(w.samples, held.of), medians(half, held.of)
		grows, atLeast := growth(later)
		share := grows / later[len(later)/2]
		w.t.Logf("%s by the minute: %.0f; in the second half %+.2f %% in an hour", held.what, all, 100*share)
		if *soak >= 50*time.Minute && share > 0.01 && grows > held.least && atLeast > 0 {
			w.t.Errorf("%s grow by %.0f, %.2f %%, in an hour, and by %.0f at least", held.what, grows, 100*share, atLeast)
		}
	}
}

// medians returns the median of each minute.
func medians(samples []soakSample, of func(soakSample) int) (all []float64) {
	for minute := range slices.Chunk(samples, 60) {
		values := make([]int, len(minute))
		for i := range minute {
			values[i] = of(minute[i])
		}
		slices.Sort(values)
		all = append(all, float64(values[len(values)/2]))
	}
	return all
}

// growth returns how much values, one for each minute, grow in an hour: the median of the slopes
// between all pairs, which a few odd values do not change. With 99 % it is atLeast or more (Sen's
// interval).
func growth(values []float64) (inAnHour, atLeast float64) {
	var slopes []float64
	for i := range values {
		for j := range i {
			slopes = append(slopes, (values[i]-values[j])/float64(i-j))
		}
	}
	if len(slopes) == 0 {
		return 0, 0
	}
	slices.Sort(slopes)
	n, pairs := float64(len(values)), float64(len(slopes))
	chance := 2.326 * math.Sqrt(n*(n-1)*(2*n+5)/18) // pairs that rise more often than they fall by chance
	return 60 * slopes[len(slopes)/2], 60 * slopes[max(0, int((pairs-chance)/2))]
}

func TestASoakSeesGrowthAndNotNoise(t *testing.T) {
	chance := rand.New(rand.NewPCG(1, 1))
	found := func(grows float64) (n int) {
		for range 1000 {
			var values []float64
			for minute := range 27 {
				values = append(values, 100+grows*float64(minute)/60+0.3*chance.NormFloat64())
			}
			if inAnHour, atLeast := growth(values); inAnHour > 1 && atLeast > 0 {
				n++
			}
		}
		return n
	}
	if flat, leak := found(0), found(2); flat > 20 || leak < 900 {
		t.Errorf("of 1000 series with noise %d that are flat seem to grow, and %d that grow by 2 %% in an hour", flat, leak)
	}
	if inAnHour, _ := growth(append(slices.Repeat([]float64{80}, 13), slices.Repeat([]float64{81}, 14)...)); inAnHour > 3 {
		t.Errorf("one goroutine more is a growth of %.1f in an hour", inAnHour)
	}
}
