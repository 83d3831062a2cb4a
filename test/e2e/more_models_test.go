//go:build e2e && linux

package e2e

import (
	"context"
	"encoding/binary"
	"flag"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/shoal-serving/shoal/client"
	"github.com/shoal-serving/shoal/internal/engine/onnx/onnxtest"
	"github.com/shoal-serving/shoal/tensor"
	"github.com/shoal-serving/shoal/test/servertest"
)

var (
	demandFor    = flag.Duration("demand", 10*time.Second, "how long requests ask for more models than fit into memory")
	demandModels = flag.Int("demand-models", 60, "how many models they ask for")
	demandFit    = flag.Int("demand-fit", 16, "how many of them the memory is for")
	demandRate   = flag.Float64("demand-rate", 20, "requests per second")
	demandBucket = flag.Bool("demand-bucket", false, "the models are in a real S3 server, and not in a directory")
	demandReal   = flag.String("demand-real", "", "a model of real size, in place of generated ones of 8 MiB")
)

// popular is how many of the most popular models a run watches: they are never cold.
const popular = 10

// TestMoreModelsThanMemory asks by Zipf's law for models that do not all fit, each of which has a
// file of its own. All answers are right, or 503 with a time to retry; memory stays within its
// limit; about as many requests find their model loaded as if the one that was used least recently
// left; and models that stay are hardly slower than without loads.
func TestMoreModelsThanMemory(t *testing.T) {
	models := generatedModels(t)
	if *demandReal != "" {
		models = realModels(t, *demandReal)
	}
	source := models.write(t)
	size, own := models.measure(t, source)
	limit := *demandFit * size
	s := startOnDemand(t, source, limit)
	before := s.Resident() << 10
	run := &demandRun{population: models, client: s.Client()}

	// Nothing is loaded while the popular models answer.
	for i := range popular {
		if o := run.ask(t, i); o.text != "200" {
			t.Fatalf("%s: %s", modelName(i), o.text)
		}
	}
	alone := latencies(run.askFor(t, *demandFor/5, nil, func() int { return int(time.Now().UnixNano()/1000) % popular }), nil)

	most := 0
	outcomes := run.askFor(t, *demandFor, func() { most = max(most, s.Resident()<<10) }, zipf(*demandModels))
	loads := loadsOf(t, s.Log())
	steady := outcomes[len(outcomes)/5:] // until then, models are loaded for the first time
	counts, hits := map[string]int{}, 0
	for _, o := range outcomes {
		counts[o.text]++
	}
	for _, o := range steady {
		if o.text == "200" && !loads.during(o) {
			hits++
		}
	}
	cold := latencies(outcomes, loads.during)
	stayed := latencies(steady, func(o demandOutcome) bool { return o.model < popular && !loads.during(o) })
	ratio, lru := float64(hits)/float64(len(steady)), leastRecentlyUsed(*demandModels, *demandFit)
	t.Logf("%d models of %.1f MiB on memory for %d, %v requests/s: %v; memory grew by %d MiB at most, of a limit of %d MiB and %d MiB of the server's own; %s",
		*demandModels, float64(size)/(1<<20), *demandFit, *demandRate, counts, (most-before)>>20, limit>>20, own>>20, demandFigures(t, s))
	t.Logf("found loaded: %.3f of requests, %.3f if the least recently used left; cold: p50 %v, p99 %v; popular models: p99 %v, %v without loads",
		ratio, lru, share(cold, 0.5), share(cold, 0.99), share(stayed, 0.99), share(alone, 0.99))
	if counts["200"] == 0 || len(counts) > 2 || len(counts) == 2 && counts["503"] == 0 {
		t.Errorf("answers %v, want 200 and 503 with a time to retry", counts)
	}
	if spare := servertest.StrictOr(0, own); most-before > limit*11/10+spare {
		t.Errorf("memory grew by %d MiB, the limit is %d MiB, and %d MiB for the server itself", (most-before)>>20, limit>>20, spare>>20)
	}
	if len(cold) == 0 {
		t.Error("no request waited for a load, so that this test shows nothing")
	}
	if *servertest.Strict && ratio < lru-0.01 {
		t.Errorf("%.3f of requests found their model loaded, want %.3f", ratio, lru-0.01)
	}
	if *servertest.Strict && share(stayed, 0.99) > 2*share(alone, 0.99) {
		t.Errorf("the p99 of models that stay is %v, and %v without loads", share(stayed, 0.99), share(alone, 0.99))
	}
}

func modelName(i int) string { return fmt.Sprintf("m%04d", i) }

func startOnDemand(t *testing.T, source string, memory int) *servertest.Server {
	t.Helper()
	return servertest.Start(t, source, "--model-control-mode=demand", fmt.Sprintf("--model-memory=%d", memory), "--calibration-dir=", "--model-cache="+t.TempDir())
}

// A population is the models that requests ask for.
type population struct {
	file   func(i int) []byte // of model i; no two are equal
	inputs []client.Tensor
	right  func(i int, resp *client.Response) bool
}

// generatedModels have weights of their own, so that answers show whose they are.
func generatedModels(t *testing.T) population {
	t.Helper()
	const columns = 1448
	dir := t.TempDir()
	weight := func(i, k int) float32 { return float32((k+31*i)%997) / 997 }
	x := make([]byte, 4*columns)
	binary.LittleEndian.PutUint32(x, math.Float32bits(1)) // and zeros: it asks for the first row
	return population{
		file: func(i int) []byte {
			onnxtest.Dense{Rows: columns, Columns: columns, Weight: func(k int) float32 { return weight(i, k) }}.Write(t, dir)
			return readFile(t, filepath.Join(dir, "model.onnx"))
		},
		inputs: []client.Tensor{{Name: "x", Type: tensor.FP32, Shape: []int64{1, columns}, Data: x}},
		right: func(i int, resp *client.Response) bool {
			y := resp.Outputs[0].Data
			for k := range columns {
				if math.Float32frombits(binary.LittleEndian.Uint32(y[4*k:])) != weight(i, k) {
					return false
				}
			}
			return true
		},
	}
}

// realModels are copies of a text recogniser that differ in their metadata. Their answers do not,
// and are compared with the first.
func realModels(t *testing.T, name string) population {
	t.Helper()
	original := readFile(t, servertest.RealModel(t, name))
	var mu sync.Mutex // guards first
	var first []byte
	return population{
		file: func(i int) []byte {
			entry := protowire.AppendString(protowire.AppendTag(nil, 1, protowire.BytesType), "copy")
			entry = protowire.AppendString(protowire.AppendTag(entry, 2, protowire.BytesType), strconv.Itoa(i))
			const metadata = 14 // ModelProto.metadata_props
			return protowire.AppendBytes(protowire.AppendTag(slices.Clone(original), metadata, protowire.BytesType), entry)
		},
		inputs: []client.Tensor{{Name: "x", Type: tensor.FP32, Shape: []int64{1, 3, 48, 320}, Data: make([]byte, 4*3*48*320)}},
		right: func(_ int, resp *client.Response) bool {
			mu.Lock()
			defer mu.Unlock()
			if first == nil {
				first = slices.Clone(resp.Outputs[0].Data)
			}
			return len(first) > 0 && slices.Equal(first, resp.Outputs[0].Data)
		},
	}
}

func readFile(t *testing.T, name string) []byte {
	t.Helper()
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// write writes all models to a directory or a bucket, and returns what the server serves.
func (p *population) write(t *testing.T) (source string) {
	t.Helper()
	dir := t.TempDir()
	source = dir
	put := func(key string, content []byte) error {
		file := filepath.Join(dir, key)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			return err
		}
		return os.WriteFile(file, content, 0o644)
	}
	if *demandBucket {
		endpoint := "?use_path_style=true&endpoint=http://" + startS3(t)
		b := openBucket(t, "s3://models"+endpoint)
		source = "s3://models/m" + endpoint
		put = func(key string, content []byte) error { return b.WriteAll(t.Context(), "m/"+key, content, nil) }
	}
	for i := range *demandModels {
		if err := put(modelName(i)+"/1/model.onnx", p.file(i)); err != nil {
			t.Fatal(err)
		}
	}
	return source
}

// measure returns how much memory the server takes for each model that serves, if as many do as are
// to fit. What it takes for itself meanwhile counts, too: it counts against the limit, which is for
// what all of them take. own is that by itself, at its peak while further models are loaded two at a
// time: code, the heap of Go, and second copies of models.
func (p *population) measure(t *testing.T, source string) (size, own int) {
	t.Helper()
	s := startOnDemand(t, source, 8<<30)
	defer s.Terminate()
	before := s.Resident() << 10
	run := &demandRun{population: *p, client: s.Client()}
	load := func(model int) {
		if o := run.ask(t, model); o.text != "200" {
			t.Errorf("%s: %s", modelName(model), o.text)
		}
	}
	for i := range *demandFit {
		load(i)
	}
	size = (s.Resident()<<10 - before) / *demandFit
	w := watch(s)
	for i := *demandFit; i < *demandFit+8; i += 2 {
		var pair sync.WaitGroup
		pair.Go(func() { load(i) })
		pair.Go(func() { load(i + 1) })
		pair.Wait()
	}
	peak, _ := w.end()
	return size, peak - before - int(figure(t, s, `shoal_demand_memory_bytes\{kind="held"\}`))
}

// A demandRun sends requests, and keeps what became of them.
type demandRun struct {
	population
	client *client.Client
}

type demandOutcome struct {
	model      int
	sent, back time.Time
	text       string // as outcomeOf returns it
}

func (r *demandRun) ask(t *testing.T, model int) demandOutcome {
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	o := demandOutcome{model: model, sent: time.Now()}
	resp, err := r.client.Infer(ctx, &client.Request{Model: modelName(model), Inputs: r.inputs})
	o.back, o.text = time.Now(), outcomeOf(err)
	if err == nil && !r.right(model, resp) {
		o.text = "the answer of another model"
	}
	return o
}

// askFor sends requests at the rate of the flags, and returns what became of them in the order in
// which they were sent.
func (r *demandRun) askFor(t *testing.T, d time.Duration, each func(), next func() int) []demandOutcome {
	outcomes := make([]demandOutcome, max(1, int(d.Seconds()**demandRate)))
	var all sync.WaitGroup
	began := time.Now()
	for k := range outcomes {
		time.Sleep(time.Until(began.Add(time.Duration(float64(k) * float64(time.Second) / *demandRate))))
		model := next()
		all.Go(func() { outcomes[k] = r.ask(t, model) })
		if each != nil {
			each()
		}
	}
	all.Wait()
	return outcomes
}

// latencies returns how long the requests took that were answered and belong to a group; nil means
// all. They are sorted.
func latencies(outcomes []demandOutcome, belongs func(demandOutcome) bool) (all []time.Duration) {
	for _, o := range outcomes {
		if o.text == "200" && (belongs == nil || belongs(o)) {
			all = append(all, o.back.Sub(o.sent))
		}
	}
	slices.Sort(all)
	return all
}

// share returns the latency that a share of requests did not exceed.
func share(sorted []time.Duration, of float64) time.Duration {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[min(len(sorted)-1, int(of*float64(len(sorted))))].Round(10 * time.Microsecond)
}

// loadTimes are the times at which models were loaded, by name.
type loadTimes map[string][]time.Time

var loadedLine = regexp.MustCompile(`(?m)^time=(\S+) .*msg="model loaded" model=(\S+)`)

func loadsOf(t *testing.T, log string) loadTimes {
	t.Helper()
	loads := loadTimes{}
	for _, m := range loadedLine.FindAllStringSubmatch(log, -1) {
		at, err := time.Parse(time.RFC3339Nano, m[1])
		if err != nil {
			t.Fatal(err)
		}
		loads[m[2]] = append(loads[m[2]], at)
	}
	return loads
}

// during reports whether the model of a request was loaded while the request waited. The log has
// milliseconds.
func (l loadTimes) during(o demandOutcome) bool {
	return slices.ContainsFunc(l[modelName(o.model)], func(at time.Time) bool {
		return !at.Before(o.sent.Truncate(time.Millisecond)) && !at.After(o.back)
	})
}

// leastRecentlyUsed returns the share of requests by Zipf's law that find their model in memory for
// fit of them, if the one that was used least recently leaves: Che's approximation.
func leastRecentlyUsed(models, fit int) float64 {
	sum := 0.0
	for i := range models {
		sum += 1 / float64(i+1)
	}
	loaded := func(requests float64) (count, hits float64) {
		for i := range models {
			p := 1 / float64(i+1) / sum
			here := 1 - math.Exp(-p*requests)
			count, hits = count+here, hits+p*here
		}
		return count, hits
	}
	low, high := 0.0, 1e9
	for range 100 {
		middle := (low + high) / 2
		if count, _ := loaded(middle); count < float64(fit) {
			low = middle
		} else {
			high = middle
		}
	}
	_, hits := loaded(high)
	return hits
}
