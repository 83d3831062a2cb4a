package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/shoal-serving/shoal/internal/arrivals"
	"github.com/shoal-serving/shoal/internal/bench"
	"github.com/shoal-serving/shoal/internal/console"
	"github.com/shoal-serving/shoal/internal/pacer"
)

// maxLevels is the most loads of one run: a range of more is a mistake.
const maxLevels = 1000

// metadataTimeout is the time limit for the metadata of a model.
const metadataTimeout = 10 * time.Second

// benchOptions are the flags of `shoal bench`, as they are written.
type benchOptions struct {
	models                     []string
	version, address, protocol string

	credentials              credentialFlags
	streaming                bool
	rows                     int
	sequences, sequenceLen   int
	sequenceVariation        float64
	sequenceIDs              string
	shapes                   []string
	data, text               string
	stringLength             int
	concurrency, rate        string
	clients                  int
	distribution             string
	burst                    int
	intervals                string
	trace, traceModel        string
	count, warmUp, repeats   int
	percentile, stability    float64
	mode                     string
	interval, windowRequests int
	trials                   int
	seed                     uint64
	csv, json, html          string
	verbose, quick           bool
	sharedMemory             string
	serviceKind              string
	refused                  []string // names of the given flags that only perf_analyzer supports
}

// newBenchCommand returns `shoal bench`.
func newBenchCommand() *cobra.Command {
	var o benchOptions
	cmd := &cobra.Command{
		Use:   "bench [MODEL]",
		Short: "Measure the throughput and latency of a model",
		Long: `Bench sends requests to a model of any KServe v2 server, and reports the throughput, the latencies, and where the
server says that the time went. --concurrency-range keeps a number of requests in flight. --request-rate-range sends requests at a
rate, whether or not earlier ones are answered; latencies then count from the time at which a request was due. --request-trace
sends requests as a server has recorded them.

With the defaults, each load takes 15 s, or up to 50 s until it is stable. --quick takes ten seconds in total.

Flags have the names of Triton's perf_analyzer.`,
		Example: `  shoal bench resnet50 --quick
  shoal bench -m resnet50 -b 2 --concurrency-range 2:16:2
  shoal bench -m resnet50 -i grpc --request-rate-range 100:500:100 \
      --request-distribution poisson --percentile 99
  shoal bench -m resnet50 --request-trace arrivals.txt
  shoal bench -m bert --shape input_ids:128 --shape mask:128 --json -`,
		Args: arguments(0, 1, ""),
		RunE: func(cmd *cobra.Command, args []string) error {
			o.models = append(o.models, args...)
			w, err := o.check(cmd.Flags())
			if err != nil {
				return misuse{err}
			}
			return o.run(cmd.Context(), w, cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	o.addFlags(cmd.Flags())
	cmd.AddCommand(newBenchCompareCommand())
	return cmd
}

func (o *benchOptions) addFlags(f *pflag.FlagSet) {
	f.StringSliceVarP(&o.models, "model", "m", nil, "`name` of the model; several get every load at the same time")
	f.StringVarP(&o.version, "model-version", "x", "", "`version` of the model; by default the server chooses")
	f.StringVarP(&o.address, "url", "u", "", "`host:port` of the server (default localhost:8000, and with -i grpc localhost:8001)")
	f.StringVarP(&o.protocol, "protocol", "i", "http", "`protocol`: http or grpc")
	f.BoolVar(&o.streaming, "streaming", false, "send requests over gRPC streams instead of single calls")
	topic(f, "Model and server")
	o.credentials.define(f)
	topic(f, "Credentials")
	f.BoolVar(&o.quick, "quick", false, "measure 1 and 16 clients for ten seconds in total, and print one sentence")
	f.StringVar(&o.concurrency, "concurrency-range", "1", "concurrent requests, as `start:end:step`")
	f.StringVar(&o.rate, "request-rate-range", "", "requests per second, as `start:end:step`, instead of a concurrency")
	f.StringVar(&o.distribution, "request-distribution", "constant", "intervals between requests at a rate: constant, poisson, burst (bursts at random intervals) or constant-burst")
	f.IntVar(&o.burst, "burst-size", 8, "`requests` in a burst")
	f.StringVar(&o.intervals, "request-intervals", "", "`file` of intervals between requests, in microseconds, one per line, used repeatedly, instead of a rate")
	f.StringVar(&o.trace, "request-trace", "", "`file` of shoal serve --record-arrivals: send requests as they arrived, once, instead of a rate")
	f.StringVar(&o.traceModel, "request-trace-model", "", "`name` of the model in the trace, if it differs")
	f.IntVar(&o.sequenceLen, "sequence-length", 20, "mean `requests` of a sequence, for models with sequence_batching")
	f.Float64Var(&o.sequenceVariation, "sequence-length-variation", 20, "the most by which lengths of sequences differ from the mean, in `percent`")
	f.StringVar(&o.sequenceIDs, "sequence-id-range", "", "IDs of sequences, as `start:end`, of which the end is not used; by default from 1 on")
	f.IntVar(&o.sequences, "num-of-sequences", 4, "`sequences` at the same time, for requests at a rate; otherwise each concurrent request is one")
	topic(f, "Load")
	f.IntVarP(&o.rows, "batch-size", "b", 1, "`rows` of a request")
	f.StringArrayVar(&o.shapes, "shape", nil, "shape of an input without its rows, as `NAME:d,d`; may be repeated")
	f.StringVar(&o.data, "input-data", "random", "`values` of the inputs: zero, random, a directory with a file for each input, or a JSON file of samples")
	f.IntVar(&o.stringLength, "string-length", 128, "`characters` of random strings")
	f.StringVar(&o.text, "string-data", "", "`text` of all strings, instead of random ones")
	f.Uint64Var(&o.seed, "seed", 1, "`seed` of random values and intervals")
	topic(f, "Inputs")
	f.IntVar(&o.count, "request-count", 0, "`requests` of a load, which then is one window; 0 means that windows end it")
	f.IntVar(&o.warmUp, "warmup-request-count", 1, "`requests` before the first load, one after another")
	f.IntVar(&o.repeats, "repeats", 1, "`times` that the range of loads is repeated")
	f.Float64Var(&o.percentile, "percentile", 0, "latency percentile that windows are compared by; by default the average")
	f.StringVar(&o.mode, "measurement-mode", "time_windows", "what ends a window: time_windows or count_windows")
	f.IntVarP(&o.interval, "measurement-interval", "p", 5000, "length of a window in `milliseconds`")
	f.IntVar(&o.windowRequests, "measurement-request-count", 50, "`responses` that end a window in count_windows")
	f.Float64VarP(&o.stability, "stability-percentage", "s", 10, "maximum difference of three windows in a row, in `percent`, for a stable load")
	f.IntVarP(&o.trials, "max-trials", "r", 10, "`windows` in which a load has to become stable")
	topic(f, "Measurement")
	f.StringVarP(&o.csv, "latency-report-file", "f", "", "write a CSV table to this `file`; use - for stdout")
	f.StringVar(&o.json, "json", "", "write all results as JSON to this `file`; use - for stdout")
	f.StringVar(&o.html, "html", "", "write a page with charts to this `file`; use - for stdout")
	f.BoolVarP(&o.verbose, "verbose", "v", false, "report progress every second, even if stderr is not a terminal")
	topic(f, "Output")
	o.addPerfAnalyzers(f)
}

// addPerfAnalyzers adds flags of perf_analyzer that have no effect here, or only one value.
// They are not in the help.
func (o *benchOptions) addPerfAnalyzers(f *pflag.FlagSet) {
	before := map[string]bool{}
	f.VisitAll(func(flag *pflag.Flag) { before[flag.Name] = true })
	f.IntVarP(&o.clients, "concurrent", "t", 0, "")
	f.BoolP("async", "a", false, "")
	f.Bool("sync", false, "")
	f.Bool("serial-sequences", false, "") // requests of a sequence are always sent one after the other
	f.Int("max-threads", 0, "")
	f.StringVar(&o.sharedMemory, "shared-memory", "none", "")
	f.StringVar(&o.serviceKind, "service-kind", "triton", "")
	for _, name := range refusedOptions {
		short := map[string]string{"latency-threshold": "l", "header": "H"}[name]
		flag := f.VarPF(refusedFlag{name, &o.refused}, name, short, "")
		if slices.Contains([]string{"binary-search", "collect-metrics", "verbose-csv", "fixed-schedule"}, name) {
			flag.NoOptDefVal = "true"
		}
	}
	f.VisitAll(func(flag *pflag.Flag) { flag.Hidden = flag.Hidden || !before[flag.Name] })
}

// refusedOptions are flags of perf_analyzer that would change what is measured or written,
// and are not supported. docs/how-to/benchmark.md has the list.
var refusedOptions = []string{
	"latency-threshold", "binary-search", "periodic-concurrency-range", "request-period", "session-concurrency", "fixed-schedule",
	"input-tensor-format", "output-tensor-format", "output-shared-memory-size", "request-parameter",
	"header", "grpc-compression-algorithm", "grpc-method", "proto",
	"verbose-csv", "profile-export-file", "collect-metrics", "metrics-url", "metrics-interval",
	"trace-level", "trace-rate", "trace-count", "log-frequency",
	"model-signature-name", "bls-composing-models", "triton-server-directory", "model-repository",
}

// A refusedFlag remembers that it was given.
type refusedFlag struct {
	name string
	all  *[]string
}

// String implements [pflag.Value].
func (refusedFlag) String() string { return "" }

// Type implements [pflag.Value].
func (refusedFlag) Type() string { return "string" }

// Set implements [pflag.Value].
func (f refusedFlag) Set(string) error {
	*f.all = append(*f.all, f.name)
	return nil
}

// benchWork is what the flags ask for.
type benchWork struct {
	shapes map[string][]int64
	loads  []bench.Load
	// sequences apply to models that have them.
	sequences bench.Sequences
	// recorded are the requests of a trace by model, and zero is the time of the first.
	recorded map[string][]arrivals.Arrival
	zero     time.Duration
}

// check parses the flags, and returns an error if they are invalid.
func (o *benchOptions) check(given *pflag.FlagSet) (w benchWork, err error) {
	var errs []error
	for _, names := range [][]string{
		{"quick", "concurrency-range", "request-rate-range", "request-intervals", "request-trace", "concurrent"},
		{"quick", "measurement-interval"},
		{"quick", "max-trials"},
		{"quick", "request-count"},
		{"request-trace", "request-count"},
		{"request-trace", "batch-size"},
	} {
		errs = append(errs, exclusive(given, names...))
	}
	errs = append(errs, oneToStdout([2]string{"-f", o.csv}, [2]string{"--json", o.json}, [2]string{"--html", o.html}))
	if err := errors.Join(errs...); err != nil {
		return w, err
	}
	switch {
	case len(o.refused) > 0:
		return w, fmt.Errorf("--%s of perf_analyzer is not supported; docs/how-to/benchmark.md lists the flags that are", o.refused[0])
	case len(o.models) == 0 || slices.Contains(o.models, ""):
		return w, fmt.Errorf(needsModel, "bench")
	case o.quick && len(o.models) > 1:
		return w, errors.New("--quick measures one model; leave it out to measure several")
	case o.protocol != "http" && o.protocol != "grpc":
		return w, fmt.Errorf("--protocol: %q is not valid: expected http or grpc", o.protocol)
	case o.streaming && o.protocol != "grpc":
		return w, errors.New("--streaming needs -i grpc, because HTTP has no streams")
	case o.sharedMemory != "none":
		return w, fmt.Errorf("--shared-memory: %q is not supported: requests always carry their data; expected none", o.sharedMemory)
	case o.serviceKind != "triton":
		return w, fmt.Errorf("--service-kind: %q is not supported: servers must speak KServe v2; expected triton", o.serviceKind)
	case !slices.Contains([]string{"constant", "poisson", "burst", "constant-burst"}, o.distribution):
		return w, fmt.Errorf("--request-distribution: %q is not valid: expected constant, poisson, burst or constant-burst", o.distribution)
	case o.mode != "time_windows" && o.mode != "count_windows":
		return w, fmt.Errorf("--measurement-mode: %q is not valid: expected time_windows or count_windows", o.mode)
	case given.Changed("percentile") && !(o.percentile > 0 && o.percentile < 100):
		return w, fmt.Errorf("--percentile: %v is not valid: expected more than 0 and less than 100", o.percentile)
	case !(o.sequenceVariation >= 0 && o.sequenceVariation <= 100):
		return w, fmt.Errorf("--sequence-length-variation: %v is not valid: expected 0 to 100", o.sequenceVariation)
	case !(o.stability > 0):
		return w, fmt.Errorf("--stability-percentage: %v is not valid: expected more than 0", o.stability)
	}
	for _, c := range []struct {
		name  string
		value int
		least int
	}{
		{"-b", o.rows, 1},
		{"--measurement-interval", o.interval, 1},
		{"--measurement-request-count", o.windowRequests, 1},
		{"--max-trials", o.trials, 1},
		{"--burst-size", o.burst, 1},
		{"--sequence-length", o.sequenceLen, 1},
		{"--num-of-sequences", o.sequences, 1},
		{"--string-length", o.stringLength, 1},
		{"--repeats", o.repeats, 1},
		{"--request-count", o.count, 0},
		{"--warmup-request-count", o.warmUp, 0},
		{"-t", o.clients, 0},
	} {
		if c.value < c.least {
			return w, fmt.Errorf("%s: %d is not valid: expected at least %d", c.name, c.value, c.least)
		}
	}
	if o.address == "" {
		o.address = map[string]string{"http": "localhost:8000", "grpc": "localhost:8001"}[o.protocol]
	}
	if w.shapes, err = parseShapes(o.shapes); err != nil {
		return w, err
	}
	w.sequences = bench.Sequences{Length: o.sequenceLen, Variation: o.sequenceVariation, Number: o.sequences, Seed: o.seed}
	if w.sequences.First, w.sequences.Last, err = parseIDs(o.sequenceIDs); err != nil {
		return w, fmt.Errorf("--sequence-id-range: %w", err)
	}
	if o.trace != "" {
		if err := o.readTrace(&w); err != nil {
			return w, fmt.Errorf("--request-trace: %w", err)
		}
	}
	once, err := o.loads()
	for _, l := range once {
		if ids := w.sequences.Last - w.sequences.First + 1; o.sequenceIDs != "" && uint64(cmp.Or(l.Concurrency, o.sequences)) > ids {
			return w, fmt.Errorf("--sequence-id-range: %q has %d IDs, which are fewer than the sequences at the same time", o.sequenceIDs, ids)
		}
	}
	for n := range o.repeats {
		for _, l := range once {
			if o.repeats > 1 {
				l.Repeat = n + 1
			}
			w.loads = append(w.loads, l)
		}
	}
	return w, err
}

// readTrace finds the requests of each model: under its own name, under the given name, or
// those of the only model in the trace.
func (o *benchOptions) readTrace(w *benchWork) error {
	all, err := arrivals.ReadFile(o.trace)
	if err != nil {
		return err
	}
	byModel := map[string][]arrivals.Arrival{}
	for _, a := range all {
		byModel[a.Model] = append(byModel[a.Model], a)
	}
	names := slices.Sorted(maps.Keys(byModel))
	if o.traceModel != "" && len(o.models) > 1 {
		return errors.New("--request-trace-model needs a single model; several are looked up by their own names")
	}
	w.recorded = map[string][]arrivals.Arrival{}
	for _, model := range o.models {
		recorded := byModel[cmp.Or(o.traceModel, model)]
		if recorded == nil && o.traceModel == "" && len(o.models) == 1 && len(names) == 1 {
			recorded = byModel[names[0]]
		}
		if recorded == nil {
			return fmt.Errorf("%s has no requests for %q, but for %q; choose one with --request-trace-model", o.trace, cmp.Or(o.traceModel, model), names)
		}
		if len(w.recorded) == 0 || recorded[0].At < w.zero {
			w.zero = recorded[0].At
		}
		w.recorded[model] = recorded
	}
	return nil
}

func (o *benchOptions) loads() (loads []bench.Load, err error) {
	switch {
	case o.quick:
		return []bench.Load{{Concurrency: 1}, {Concurrency: quickClients}}, nil
	case o.trace != "":
		return []bench.Load{{Plan: true}}, nil
	case o.intervals != "":
		distances, err := readIntervals(o.intervals)
		if err != nil {
			return nil, fmt.Errorf("--request-intervals: %w", err)
		}
		var sum time.Duration
		for _, d := range distances {
			sum += d
		}
		return []bench.Load{{Intervals: distances, Rate: float64(len(distances)) / sum.Seconds(), Count: o.count}}, nil
	case o.rate != "":
		values, err := parseRange(o.rate)
		if err != nil {
			return nil, fmt.Errorf("--request-rate-range: %w", err)
		}
		for _, v := range values {
			l := bench.Load{Rate: v, Poisson: o.distribution == "poisson" || o.distribution == "burst", Seed: o.seed, Count: o.count}
			if strings.HasSuffix(o.distribution, "burst") {
				l.Burst = o.burst
			}
			loads = append(loads, l)
		}
		return loads, nil
	case o.clients > 0:
		return []bench.Load{{Concurrency: o.clients, Count: o.count}}, nil
	}
	values, err := parseRange(o.concurrency)
	if err != nil {
		return nil, fmt.Errorf("--concurrency-range: %w", err)
	}
	for _, v := range values {
		if v != math.Trunc(v) {
			return nil, fmt.Errorf("--concurrency-range: %v is not valid: expected a whole number of requests", v)
		}
		loads = append(loads, bench.Load{Concurrency: int(v), Count: o.count})
	}
	return loads, nil
}

// readIntervals reads a number of microseconds from each line.
func readIntervals(name string) ([]time.Duration, error) {
	text, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	var all []time.Duration
	for n, line := range strings.Split(strings.TrimSpace(string(text)), "\n") {
		us, err := strconv.ParseUint(strings.TrimSpace(line), 10, 40)
		if err != nil {
			return nil, fmt.Errorf("%s:%d: %q is not valid: expected a whole number of microseconds", name, n+1, line)
		}
		all = append(all, time.Duration(us)*time.Microsecond)
	}
	if !slices.ContainsFunc(all, func(d time.Duration) bool { return d > 0 }) {
		return nil, fmt.Errorf("%s: all intervals are 0; expected at least one above 0", name)
	}
	return all, nil
}

// parseRange reads start:end:step, of which the last two may be missing.
func parseRange(text string) ([]float64, error) {
	parts := strings.Split(text, ":")
	values := []float64{0, 0, 1}
	if len(parts) > len(values) {
		return nil, fmt.Errorf("%q has too many parts; expected start:end:step, such as 2:16:2", text)
	}
	for i, part := range parts {
		v, err := strconv.ParseFloat(part, 64)
		if err != nil || !(v > 0) || math.IsInf(v, 0) {
			return nil, fmt.Errorf("%q in %q is not a number above 0; expected start:end:step, such as 2:16:2", part, text)
		}
		values[i] = v
	}
	start, end, step := values[0], values[1], values[2]
	if len(parts) == 1 {
		end = start
	}
	if end < start {
		return nil, fmt.Errorf("%q ends before it starts", text)
	}
	steps := math.Floor((end-start)/step + 1e-9) // a tenth ten times is not quite one
	if steps >= maxLevels {
		return nil, fmt.Errorf("%q has more than %d loads; use a larger step", text, maxLevels)
	}
	var all []float64
	for n := range int(steps) + 1 {
		all = append(all, start+float64(n)*step)
	}
	return all, nil
}

// parseIDs reads start:end, of which the end may be missing. It returns the first and the last
// ID; 0 means the default.
func parseIDs(text string) (first, last uint64, err error) {
	if text == "" {
		return 0, 0, nil
	}
	start, end, limited := strings.Cut(text, ":")
	first, err = strconv.ParseUint(start, 10, 64)
	if err == nil && limited {
		last, err = strconv.ParseUint(end, 10, 64)
		last--
	}
	if err != nil || first == 0 || limited && (last == math.MaxUint64 || last < first) {
		return 0, 0, fmt.Errorf("%q is not valid: expected start:end, such as 1:1000, with a start of at least 1 and below the end", text)
	}
	if !limited {
		last = math.MaxUint64
	}
	return first, last, nil
}

// parseShapes reads NAME:d,d. A name may have colons in it.
func parseShapes(texts []string) (map[string][]int64, error) {
	shapes := map[string][]int64{}
	for _, text := range texts {
		colon := strings.LastIndexByte(text, ':')
		if colon < 1 {
			return nil, fmt.Errorf("--shape: %q is not valid: expected NAME:d,d, such as input_ids:128", text)
		}
		shape := []int64{}
		for part := range strings.SplitSeq(text[colon+1:], ",") {
			d, err := strconv.ParseInt(part, 10, 64)
			if err != nil || d < 1 {
				return nil, fmt.Errorf("--shape: %q is not valid: %q is not a dimension of at least 1", text, part)
			}
			shape = append(shape, d)
		}
		shapes[text[:colon]] = shape
	}
	return shapes, nil
}

// run measures, and writes the results even if the measurement ended early.
func (o *benchOptions) run(ctx context.Context, w benchWork, out, errs io.Writer) error {
	p := pacer.New()
	defer p.Close()
	b := &bench.Bench{
		Pacer: p, WarmUp: o.warmUp, Interval: time.Duration(o.interval) * time.Millisecond, MaxTrials: o.trials,
		Rule: bench.Rule{Percent: o.stability, Percentile: o.percentile},
	}
	if o.quick {
		b.Interval, b.MaxTrials = quickInterval, quickTrials
	}
	if o.mode == "count_windows" {
		b.Requests = o.windowRequests
	}
	connect, protocol := bench.NewHTTP, "HTTP"
	switch {
	case o.streaming:
		connect, protocol = bench.NewGRPCStreaming, "gRPC streams"
	case o.protocol == "grpc":
		connect, protocol = bench.NewGRPC, "gRPC"
	}
	defer func() {
		for _, t := range b.Targets {
			_ = t.Caller.Close() // all that was answered is read
		}
	}()
	opts, err := o.credentials.options(o.address)
	if err != nil {
		return err
	}
	address := o.address
	if o.protocol == "grpc" {
		address = grpcTarget(address)
	}
	for _, model := range o.models {
		caller, err := connect(address, model, o.version, opts)
		if err != nil {
			return misuse{err}
		}
		b.Targets = append(b.Targets, bench.Target{Model: model, Caller: caller})
		if err := o.prepare(ctx, w, &b.Targets[len(b.Targets)-1]); err != nil {
			return cmp.Or(o.diagnose(ctx, model), fmt.Errorf("model %q at %s over %s: %w", model, o.address, protocol, err))
		}
	}
	text := out
	if o.quick || o.csv == "-" || o.json == "-" || o.html == "-" {
		text = io.Discard // the output is a sentence, or for another program
	}
	name := strings.Join(o.models, ",")
	report := &bench.Report{
		Model: name, Protocol: protocol, Address: o.address, Rows: o.rows, Percentile: o.percentile, Interval: b.Interval,
		Levels: []bench.Level{},
	}
	switch {
	case w.recorded != nil:
		report.Rows = 0 // each request has its own
	case o.count > 0:
		report.WindowRequests = o.count
	default:
		report.WindowRequests = b.Requests
	}
	live := &liveLine{out: errs, terminal: console.IsTerminal(errs)}
	if o.verbose || live.terminal {
		b.Progress = live.show
	}
	var wrote error
	failed := report.WriteHead(text)
	if failed == nil {
		failed = b.Run(ctx, w.loads, func(l bench.Level) {
			live.clear()
			report.Levels = append(report.Levels, l)
			wrote = errors.Join(wrote, l.WriteText(text))
		})
	}
	live.clear()
	if failed != nil {
		failed = fmt.Errorf("model %q at %s over %s: %w", name, o.address, protocol, failed)
	}
	if o.quick {
		return errors.Join(failed, o.write(report, out, text), writeQuick(out, report, o.json == "-" || o.csv == "-" || o.html == "-"))
	}
	return errors.Join(failed, wrote, o.write(report, out, text), unstable(report))
}

// The loads of --quick: one client, and quickClients, each for quickTrials windows.
const (
	quickClients  = 16
	quickInterval = time.Second
	quickTrials   = 4
)

// diagnose returns why the metadata of a model cannot be read, or nil if it can.
func (o *benchOptions) diagnose(ctx context.Context, model string) error {
	conn := serverFlags{address: o.address, protocol: o.protocol, timeout: metadataTimeout, credentials: o.credentials}
	return conn.call(ctx, model, o.version, func(ctx context.Context, r *remote) error {
		_, err := r.Metadata(ctx, model, o.version)
		return err
	})
}

// writeQuick writes one sentence about both loads of --quick, unless out is for a report. Further
// sentences say what the figures do not have.
func writeQuick(out io.Writer, report *bench.Report, forReport bool) error {
	if len(report.Levels) == 0 || forReport {
		return nil
	}
	rate := func(l *bench.Level) float64 { return l.Client.InfersPerSecond / float64(max(1, report.Rows)) }
	clients := func(l *bench.Level) string {
		if l.Concurrency > 1 {
			return fmt.Sprintf("%d clients", l.Concurrency)
		}
		return "1 client"
	}
	var sides, more []string
	for i := range report.Levels {
		l := &report.Levels[i]
		parts := []string{fmt.Sprintf("%.0f req/s with %s", rate(l), clients(l))}
		for _, p := range l.Client.Percentiles {
			if p.Percent == 50 || p.Percent == 99 {
				parts = append(parts, fmt.Sprintf("p%v %s", p.Percent, shortDuration(p.Latency)))
			}
		}
		sides = append(sides, strings.Join(parts, ", "))
		if l.Interrupted {
			more = append(more, fmt.Sprintf("Interrupted: the figures of %s are of %s.", clients(l), shortDuration(l.Client.Took)))
		}
		if n := l.Client.Failed; n > 0 {
			more = append(more, fmt.Sprintf("%d of %d requests of %s failed, the first with: %s", n, n+l.Client.Requests, clients(l), printable(l.Client.Error)))
		}
	}
	sentence := report.Model + ": " + strings.Join(sides, "; ")
	if one, many := &report.Levels[0], &report.Levels[len(report.Levels)-1]; one != many {
		if many.Server != nil && len(many.Server.BatchSizes) > 0 {
			sentence += fmt.Sprintf(", in batches of %.1f rows on average", many.Server.BatchRows())
		}
		if rate(one) > 0 {
			sentence += fmt.Sprintf(": %.1f times the throughput", rate(many)/rate(one))
		}
	}
	all := strings.Join(append([]string{sentence + "."}, more...), " ")
	_, err := io.WriteString(out, strings.Join(console.Wrap("", all, console.Width(out), 0), "\n")+"\n")
	return err
}

// prepare reads the metadata of a model, and makes the requests for it.
func (o *benchOptions) prepare(ctx context.Context, w benchWork, t *bench.Target) error {
	ctx, cancel := context.WithTimeout(ctx, metadataTimeout)
	defer cancel()
	model, err := t.Caller.Model(ctx)
	if err != nil {
		return err
	}
	if model.HasSequences {
		t.Sequences = &w.sequences
		if w.recorded != nil {
			return errors.New("the model has sequences, and a trace does not say which requests belong to one; use another load")
		}
	}
	data := bench.Data{Shapes: w.shapes, Random: o.data == "random", Seed: o.seed, StringLength: o.stringLength}
	if o.text != "" {
		data.Text = &o.text
	}
	if data.Samples, err = o.samples(model); err != nil {
		return fmt.Errorf("--input-data: %w", err)
	}
	kinds := []bench.Kind{{Rows: o.rows}}
	if w.recorded != nil {
		t.Plan, kinds = bench.Replay(w.recorded[t.Model], w.zero, max(1, len(data.Samples)))
	}
	var all []bench.Request
	for _, k := range kinds {
		data.Rows = k.Rows
		requests, err := model.Requests(data, k.Priority)
		if err != nil {
			return err
		}
		for range requests {
			t.Rows = append(t.Rows, k.Rows)
		}
		all = append(all, requests...)
	}
	return t.Caller.Prepare(all)
}

// samples reads the input values from files, unless they are generated.
func (o *benchOptions) samples(model bench.Model) ([]bench.Sample, error) {
	if o.data == "zero" || o.data == "random" {
		return nil, nil
	}
	info, err := os.Stat(o.data)
	if err != nil {
		return nil, fmt.Errorf("%q is not valid: expected zero, random, a directory or a file: %w", o.data, err)
	}
	if info.IsDir() {
		return model.ReadFolder(os.DirFS(o.data))
	}
	text, err := os.ReadFile(o.data)
	if err != nil {
		return nil, err
	}
	samples, err := model.ReadJSON(text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", o.data, err)
	}
	return samples, nil
}

// A liveLine shows progress: on a terminal it replaces itself, elsewhere each is a line.
type liveLine struct {
	out      io.Writer
	terminal bool
}

// show and clear ignore errors: progress is not part of the results.
func (l *liveLine) show(p bench.Progress) {
	text := p.String()
	if !l.terminal {
		_, _ = fmt.Fprintln(l.out, text)
		return
	}
	_, _ = fmt.Fprint(l.out, "\r\x1b[K"+text[:min(len(text), console.Width(l.out)-1)])
}

func (l *liveLine) clear() {
	if l.terminal {
		_, _ = fmt.Fprint(l.out, "\r\x1b[K")
	}
}

// write writes the table of the text, and the files, if anything was measured.
func (o *benchOptions) write(report *bench.Report, out, text io.Writer) error {
	if len(report.Levels) == 0 {
		return nil
	}
	err := report.WriteTable(text)
	if o.csv != "" {
		err = errors.Join(err, writeTo(o.csv, out, report.WriteCSV))
	}
	if o.json != "" {
		err = errors.Join(err, writeTo(o.json, out, report.WriteJSON))
	}
	if o.html != "" {
		err = errors.Join(err, writeTo(o.html, out, report.WriteHTML))
	}
	return err
}

// unstable returns an error if some loads did not become stable. A user who interrupts a
// load knows that.
func unstable(report *bench.Report) error {
	n := 0
	for _, l := range report.Levels {
		if !l.Stable && !l.Interrupted {
			n++
		}
	}
	if n == 0 {
		return nil
	}
	return fmt.Errorf("%d of %d loads did not become stable; use a longer --measurement-interval, or more --max-trials", n, len(report.Levels))
}
