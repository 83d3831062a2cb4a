//go:build e2e

package bare

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"runtime"
	"strings"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/shoal-serving/shoal/internal/engine/onnx/onnxruntime"
	"github.com/shoal-serving/shoal/internal/engine/onnx/onnxtest"
)

var (
	models  = flag.String("models", "text_recognition,ppocrv4_rec,minilm,magika,wide_mlp,mlp,resnet50", "which models of ./models to measure")
	measure = flag.Duration("measure", time.Second, "how long to measure each setting")
)

// TestTheBareEngine prints a table for each model: how long a batch takes, and how
// many rows a second that gives, for each size and each way to use the cores.
func TestTheBareEngine(t *testing.T) {
	r, err := onnxruntime.Open(onnxruntime.Options{Library: onnxtest.Library(t)})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	for name := range strings.SplitSeq(*models, ",") {
		t.Run(name, func(t *testing.T) {
			if _, err := os.Stat(File("../../models", name)); err != nil {
				t.Skipf("%v: run `make models`", err)
			}
			m := Open(r, "../../models", name)
			defer m.Close()
			rows := []int{1, 2, 4, 8, 16, 32}
			if name == "resnet50" {
				rows = rows[:4] // the larger ones are slower for each row, and take seconds
			}
			var results []Result
			for _, s := range Settings(rows, runtime.NumCPU()) {
				result, err := m.Measure(s, *measure)
				if err != nil {
					t.Fatal(err)
				}
				results = append(results, result)
			}
			if err := table(os.Stdout, name, rows, results); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// table prints a line for each way to use the cores.
func table(w io.Writer, name string, rows []int, results []Result) error {
	var text strings.Builder
	fmt.Fprintf(&text, "\n%s: ms for a batch, rows/s\nrows", name)
	for _, n := range rows {
		fmt.Fprintf(&text, "\t%d", n)
	}
	for i, r := range results {
		if i%len(rows) == 0 {
			fmt.Fprintf(&text, "\n%d threads, %d callers", r.Threads, r.Callers)
		}
		fmt.Fprintf(&text, "\t%s  %s", figure(r.Takes.Seconds()*1000), figure(r.RowsPerSecond))
	}
	best := Best(results)
	fmt.Fprintf(&text, "\nbest: %v, %s rows/s\n", best.Setting, figure(best.RowsPerSecond))
	out := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	_, err := io.WriteString(out, text.String())
	return errors.Join(err, out.Flush())
}

// figure writes a number with three digits, or with all that are before the point.
func figure(v float64) string {
	if v >= 100 {
		return fmt.Sprintf("%.0f", v)
	}
	return fmt.Sprintf("%.3g", v)
}
