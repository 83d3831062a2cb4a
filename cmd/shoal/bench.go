package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/shoal-serving/shoal/internal/bench"
	"github.com/shoal-serving/shoal/internal/pacer"
)

// maxLevels bounds the loads of one run: a range of more is a slip.
const maxLevels = 1000

// benchPatience is how long a server may take to say what a model is like.
const benchPatience = 10 * time.Second

// benchOptions are the flags of `shoal bench`, as they are written.
type benchOptions struct {
	model, version, address, protocol string
	rows                              int
	shapes                            []string
	data                              string
	concurrency, rate, distribution   string
	percentile, stability             float64
	interval, trials                  int
	seed                              uint64
	csv, json                         string
}

// newBenchCommand returns `shoal bench`.
func newBenchCommand() *cobra.Command {
	var o benchOptions
	cmd := &cobra.Command{
		Use:   "bench -m MODEL",
		Short: "Put a load on a model of any KServe v2 server, and measure it",
		Long: `Bench sends requests to a model of a server that speaks KServe v2, and reports
the throughput, the latencies, and where the server says that the time went.
A range of concurrencies keeps so many requests waiting; a range of request rates
sends so many a second, whether they are answered or not, and latencies count from
when a request was due. Options have the names of Triton's perf_analyzer.`,
		Example: `  shoal bench -m seed_dynamic -b 2 --concurrency-range 2:16:2
  shoal bench -m seed_dynamic -i grpc --request-rate-range 100:500:100 --request-distribution poisson --percentile 99
  shoal bench -m bert --shape input_ids:128 --shape attention_mask:128 --json -`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			shapes, loads, err := o.check(cmd.Flags().Changed("percentile"))
			if err != nil {
				return misuse{err}
			}
			return o.run(cmd.Context(), shapes, loads, cmd.OutOrStdout())
		},
	}
	f := cmd.Flags()
	f.StringVarP(&o.model, "model", "m", "", "`name` of the model")
	f.StringVarP(&o.version, "model-version", "x", "", "`version` of the model; the server chooses if it is not given")
	f.StringVarP(&o.address, "url", "u", "", "`host:port` of the server (default localhost:8000, and with -i grpc localhost:8001)")
	f.StringVarP(&o.protocol, "protocol", "i", "http", "`protocol`: http or grpc")
	f.IntVarP(&o.rows, "batch-size", "b", 1, "`rows` of a request")
	f.StringArrayVar(&o.shapes, "shape", nil, "shape of an input without its rows, as `NAME:d,d`; may be given several times")
	f.StringVar(&o.data, "input-data", "random", "what requests hold: zero or random")
	f.StringVar(&o.concurrency, "concurrency-range", "1", "requests that wait at a time, as `start:end:step`")
	f.StringVar(&o.rate, "request-rate-range", "", "requests sent in a second, as `start:end:step`, in place of a concurrency")
	f.StringVar(&o.distribution, "request-distribution", "constant", "distances between requests that are sent at a rate: constant or poisson")
	f.Uint64Var(&o.seed, "seed", 1, "of random data and distances; the same one gives the same")
	f.Float64Var(&o.percentile, "percentile", 0, "compare windows by this percentile of the latency; by the average if it is not given")
	f.IntVarP(&o.interval, "measurement-interval", "p", 5000, "length of a window in `milliseconds`")
	f.Float64VarP(&o.stability, "stability-percentage", "s", 10, "by how much three windows in a row may differ, in `percent`")
	f.IntVarP(&o.trials, "max-trials", "r", 10, "`windows` in which a load has to become stable")
	f.StringVarP(&o.csv, "latency-report-file", "f", "", "write a table to this CSV `file`; - is the standard output, in place of the text")
	f.StringVar(&o.json, "json", "", "write all figures to this `file`; - is the standard output, in place of the text")
	cmd.MarkFlagsMutuallyExclusive("concurrency-range", "request-rate-range")
	return cmd
}

// check reads what is more than a word, and says what is wrong with the rest.
func (o *benchOptions) check(withPercentile bool) (map[string][]int64, []bench.Load, error) {
	switch {
	case o.model == "":
		return nil, nil, errors.New("which model? Name it with -m")
	case o.protocol != "http" && o.protocol != "grpc":
		return nil, nil, fmt.Errorf("-i is %q, but there are http and grpc", o.protocol)
	case o.data != "zero" && o.data != "random":
		return nil, nil, fmt.Errorf("--input-data is %q, but there are zero and random", o.data)
	case o.distribution != "constant" && o.distribution != "poisson":
		return nil, nil, fmt.Errorf("--request-distribution is %q, but there are constant and poisson", o.distribution)
	case o.rows < 1:
		return nil, nil, fmt.Errorf("-b is %d, but a request has at least one row", o.rows)
	case withPercentile && !(o.percentile > 0 && o.percentile < 100):
		return nil, nil, fmt.Errorf("--percentile is %v, but has to be between 0 and 100", o.percentile)
	case o.interval < 1:
		return nil, nil, fmt.Errorf("--measurement-interval is %d, but a window has at least a millisecond", o.interval)
	case !(o.stability > 0):
		return nil, nil, fmt.Errorf("--stability-percentage is %v, but has to be above 0: no two windows are the same", o.stability)
	case o.trials < 1:
		return nil, nil, fmt.Errorf("--max-trials is %d, but there has to be at least one window", o.trials)
	}
	if o.address == "" {
		o.address = map[string]string{"http": "localhost:8000", "grpc": "localhost:8001"}[o.protocol]
	}
	shapes, err := parseShapes(o.shapes)
	if err != nil {
		return nil, nil, err
	}
	loads, err := o.loads()
	return shapes, loads, err
}

func (o *benchOptions) loads() (loads []bench.Load, err error) {
	if o.rate != "" {
		values, err := parseRange(o.rate)
		if err != nil {
			return nil, fmt.Errorf("--request-rate-range: %w", err)
		}
		for _, v := range values {
			loads = append(loads, bench.Load{Rate: v, Poisson: o.distribution == "poisson", Seed: o.seed})
		}
		return loads, nil
	}
	values, err := parseRange(o.concurrency)
	if err != nil {
		return nil, fmt.Errorf("--concurrency-range: %w", err)
	}
	for _, v := range values {
		if v != math.Trunc(v) {
			return nil, fmt.Errorf("--concurrency-range: %v is not a number of requests", v)
		}
		loads = append(loads, bench.Load{Concurrency: int(v)})
	}
	return loads, nil
}

// parseRange reads start:end:step, of which the last two may be missing.
func parseRange(text string) ([]float64, error) {
	parts := strings.Split(text, ":")
	values := []float64{0, 0, 1}
	if len(parts) > len(values) {
		return nil, fmt.Errorf("%q has more than start:end:step", text)
	}
	for i, part := range parts {
		v, err := strconv.ParseFloat(part, 64)
		if err != nil || !(v > 0) || math.IsInf(v, 0) {
			return nil, fmt.Errorf("%q in %q is not a number above 0; write start:end:step, such as 2:16:2", part, text)
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
		return nil, fmt.Errorf("%q is more than %d loads: make the step larger", text, maxLevels)
	}
	var all []float64
	for n := range int(steps) + 1 {
		all = append(all, start+float64(n)*step)
	}
	return all, nil
}

// parseShapes reads NAME:d,d. A name may have colons in it.
func parseShapes(texts []string) (map[string][]int64, error) {
	shapes := map[string][]int64{}
	for _, text := range texts {
		colon := strings.LastIndexByte(text, ':')
		if colon < 1 {
			return nil, fmt.Errorf("--shape is %q, but has to be NAME:d,d, such as input_ids:128", text)
		}
		shape := []int64{}
		for part := range strings.SplitSeq(text[colon+1:], ",") {
			d, err := strconv.ParseInt(part, 10, 64)
			if err != nil || d < 1 {
				return nil, fmt.Errorf("--shape is %q, where %q is not a dimension of at least 1", text, part)
			}
			shape = append(shape, d)
		}
		shapes[text[:colon]] = shape
	}
	return shapes, nil
}

// run measures, and writes what was measured even if that ended early.
func (o *benchOptions) run(ctx context.Context, shapes map[string][]int64, loads []bench.Load, out io.Writer) (err error) {
	connect, protocol := bench.NewHTTP, "HTTP"
	if o.protocol == "grpc" {
		connect, protocol = bench.NewGRPC, "gRPC"
	}
	caller, err := connect(o.address, o.model, o.version)
	if err != nil {
		return misuse{err}
	}
	defer func() { err = errors.Join(err, caller.Close()) }()
	if err := o.prepare(ctx, caller, shapes); err != nil {
		return fmt.Errorf("model %q at %s over %s: %w", o.model, o.address, protocol, err)
	}
	text := out
	if o.csv == "-" || o.json == "-" {
		text = io.Discard // the output is for another program
	}
	p := pacer.New()
	defer p.Close()
	b := &bench.Bench{
		Caller: caller, Pacer: p, Rows: o.rows, Interval: time.Duration(o.interval) * time.Millisecond, MaxTrials: o.trials,
		Rule: bench.Rule{Percent: o.stability, Percentile: o.percentile},
	}
	report := &bench.Report{
		Model: o.model, Protocol: protocol, Address: o.address, Rows: o.rows, Percentile: o.percentile, Interval: b.Interval,
		Levels: []bench.Level{},
	}
	var wrote error
	failed := report.WriteHead(text)
	if failed == nil {
		failed = b.Run(ctx, loads, func(l bench.Level) {
			report.Levels = append(report.Levels, l)
			wrote = errors.Join(wrote, l.WriteText(text))
		})
	}
	if failed != nil {
		failed = fmt.Errorf("model %q at %s over %s: %w", o.model, o.address, protocol, failed)
	}
	return errors.Join(failed, wrote, o.write(report, out, text), unstable(report))
}

func (o *benchOptions) prepare(ctx context.Context, caller bench.Caller, shapes map[string][]int64) error {
	ctx, cancel := context.WithTimeout(ctx, benchPatience)
	defer cancel()
	model, err := caller.Model(ctx)
	if err != nil {
		return err
	}
	inputs, err := model.Fill(bench.Data{Rows: o.rows, Shapes: shapes, Random: o.data == "random", Seed: o.seed})
	if err != nil {
		return err
	}
	return caller.Prepare(inputs)
}

// write writes the ends of the text and the files, if anything was measured.
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
	return err
}

// unstable returns an error if there are figures that nobody should rely on.
// Who interrupted a load knows.
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
	return fmt.Errorf("%d of %d loads did not become stable: try a longer --measurement-interval, or more --max-trials", n, len(report.Levels))
}
