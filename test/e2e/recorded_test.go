//go:build e2e && linux

package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/shoal-serving/shoal/client"
	"github.com/shoal-serving/shoal/tensor"
	"github.com/shoal-serving/shoal/test/servertest"
)

// recorder is a model that writes down who was in each batch, and when it began.
const recorder = `
import json

class TritonPythonModel:
    def initialize(self, args):
        parameters = json.loads(args["model_config"])["parameters"]
        value = lambda key, other: parameters.get(key, {}).get("string_value", other)
        self.milliseconds, self.file = float(value("batch_ms", "0")), value("record", "")
        self.slow = dict(pair.split("=") for pair in value("slow_ms", "").split(",") if pair)

    def execute(self, requests):
        began = time.monotonic()
        ids = [r.request_id() for r in requests]
        time.sleep((self.milliseconds + sum(float(self.slow.get(i, 0)) for i in ids)) / 1000)
        with open(self.file, "a") as file:
            file.write(json.dumps({"began": began, "ids": ids}) + "\n")
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT", pb_utils.get_input_tensor_by_name(r, "INPUT").as_numpy())]) for r in requests]
`

// A recordedCase is what internal/batching/testdata/recorded has of one.
type recordedCase struct {
	Name      string            `json:"name"`
	Config    []string          `json:"config_pbtxt"`
	LoadError string            `json:"load_error"`
	Scenario  []recordedRequest `json:"scenario"`
	Gap       float64           `json:"gap_ms"`
	Hold      int               `json:"hold"`
	Runs      []struct {
		Protocol string     `json:"protocol"`
		Batches  [][]string `json:"batches"`
		Statuses []string   `json:"statuses"`
	} `json:"runs"`
}

type recordedRequest struct {
	At       float64  `json:"at"`
	ID       string   `json:"id"`
	Rows     int64    `json:"batch"`
	Shape    []int64  `json:"shape"`
	CancelAt *float64 `json:"cancel_at"`
	Priority uint64   `json:"priority"`
	Timeout  int64    `json:"timeout_us"`
}

// onPurpose are the numbers of cases in which we do otherwise, of which
// docs/reference/triton-compatibility.md says why. What happens there is in virtual time: see
// TestRecordedCases.
var onPurpose = []string{"22", "36", "37", "40", "41", "44", "45", "55", "57", "77", "78"}

// sizesAlone are those in which the order of arrival was not told.
var sizesAlone = []string{"74", "75"}

// inShort are played by every run of this test; the others take two minutes.
var inShort = []string{"03", "12", "13", "20", "25", "33", "46", "48", "80"}

// TestRecordedCasesOnTheRunningServer plays recorded cases with a Python model, and
// compares which requests shared a batch, in which order, and which were rejected.
func TestRecordedCasesOnTheRunningServer(t *testing.T) {
	b, err := os.ReadFile(filepath.Join(servertest.Root, "internal/batching/testdata/recorded/tritonserver-2.51.0.json"))
	if err != nil {
		t.Fatal(err)
	}
	var cases []recordedCase
	if err := json.Unmarshal(b, &cases); err != nil {
		t.Fatal(err)
	}
	repository := servertest.PythonRepository(t, "", recorder)
	s := servertest.Start(t, repository, "--model-control-mode=explicit", "--triton-status", "--batching=triton")
	for _, c := range cases {
		number := c.Name[:2]
		if c.Hold > 0 || slices.Contains(onPurpose, number) || !*servertest.Strict && !slices.Contains(inShort, number) {
			continue
		}
		t.Run(c.Name, func(t *testing.T) { c.check(t, s, repository) })
	}
}

func (c *recordedCase) check(t *testing.T, s *servertest.Server, repository string) {
	record := filepath.Join(t.TempDir(), "record")
	c.write(t, repository, record)
	control := s.Web()
	if err := control.Load(t.Context(), "m", client.LoadOptions{}); (err == nil) != (c.LoadError == "") {
		t.Fatalf("load: %v; recorded: %q\n%s", err, c.LoadError, s.Log()[max(0, len(s.Log())-2000):])
	}
	if c.LoadError != "" {
		return
	}
	defer func() {
		if err := control.Unload(t.Context(), "m"); err != nil {
			t.Error(err)
		}
	}()
	// Requests come within milliseconds of one another, which a busy machine may not
	// manage each time.
	var differs []string
	for range 5 {
		_ = os.Remove(record) // there may be none yet
		statuses := c.play(t, s)
		batches := readRecord(t, record)
		if c.agrees(batches, statuses) {
			return
		}
		differs = append(differs, fmt.Sprint(batches, statuses))
	}
	t.Errorf("it went otherwise than in each recorded run %+v:\n%s", c.Runs, strings.Join(differs, "\n"))
}

// write makes the case's configuration that of the model m.
func (c *recordedCase) write(t *testing.T, repository, record string) {
	t.Helper()
	file := filepath.Join(repository, "m", "config.pbtxt")
	lines := slices.DeleteFunc(slices.Clone(c.Config), func(line string) bool { return strings.HasPrefix(line, "name:") })
	for key, value := range map[string]string{"record": record, "python": servertest.PythonInterpreter(t)} {
		lines = append(lines, fmt.Sprintf("parameters { key: %q value { string_value: %q } }", key, value))
	}
	if err := os.WriteFile(file, []byte(strings.Join(lines, "\n")), 0o644); err != nil {
		t.Fatal(err)
	}
}

// play sends the requests at their times, and returns what became of each.
func (c *recordedCase) play(t *testing.T, s *servertest.Server) []string {
	asks := s.Client()
	if _, err := asks.Live(t.Context()); err != nil { // it is connected then
		t.Fatal(err)
	}
	statuses := make([]string, len(c.Scenario))
	began := time.Now().Add(50 * time.Millisecond)
	at := func(ms float64) time.Time { return began.Add(time.Duration(ms * float64(time.Millisecond))) }
	same := map[float64]int{}
	var sent sync.WaitGroup
	for i, r := range c.Scenario {
		due := at(r.At + float64(same[r.At])*c.Gap)
		same[r.At]++
		sent.Go(func() {
			time.Sleep(time.Until(due))
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			if r.CancelAt != nil {
				ctx, cancel = context.WithDeadlineCause(ctx, at(*r.CancelAt), context.Canceled)
				defer cancel()
			}
			_, err := asks.Infer(ctx, r.message())
			statuses[i] = codeName(err)
		})
	}
	sent.Wait()
	return statuses
}

func (r *recordedRequest) message() *client.Request {
	shape := r.Shape
	if shape == nil {
		shape = []int64{4}
	}
	shape = append([]int64{r.Rows}, shape...)
	size := int64(4)
	for _, n := range shape {
		size *= n
	}
	return &client.Request{
		Model: "m", ID: r.ID, Priority: r.Priority, Timeout: time.Duration(r.Timeout) * time.Microsecond,
		Inputs: []client.Tensor{{Name: "INPUT", Type: tensor.FP32, Shape: shape, Data: make([]byte, size)}},
	}
}

// codeName is the name of an error's code as it is recorded. A client that left is
// told the same whether it cancelled or its time was over.
func codeName(err error) string {
	e, failed := errors.AsType[*client.Error](err)
	switch {
	case err == nil:
		return "OK"
	case errors.Is(err, client.Canceled), errors.Is(err, client.Deadline):
		return "CANCELLED"
	case errors.Is(err, client.Invalid):
		return "INVALID_ARGUMENT"
	case failed:
		return strings.ToUpper(e.Status)
	}
	return err.Error()
}

// readRecord returns the batches in the order in which they began.
func readRecord(t *testing.T, file string) (batches [][]string) {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	type line struct {
		Began float64
		IDs   []string
	}
	var lines []line
	for d := json.NewDecoder(bytes.NewReader(b)); d.More(); {
		var l line
		if err := d.Decode(&l); err != nil {
			t.Fatal(err)
		}
		lines = append(lines, l)
	}
	slices.SortFunc(lines, func(a, b line) int {
		if a.Began < b.Began {
			return -1
		}
		return 1
	})
	for _, l := range lines {
		batches = append(batches, l.IDs)
	}
	return batches
}

// agrees reports whether it went as in a run that was recorded over gRPC.
func (c *recordedCase) agrees(batches [][]string, statuses []string) bool {
	same := slices.Equal[[]string]
	if slices.Contains(sizesAlone, c.Name[:2]) {
		same = func(a, b []string) bool { return len(a) == len(b) }
	}
	for _, run := range c.Runs {
		if run.Protocol != "grpc" || !slices.EqualFunc(run.Batches, batches, same) {
			continue
		}
		agreed := true
		for i, s := range statuses {
			recorded := "OK"
			if run.Statuses != nil {
				recorded, _, _ = strings.Cut(run.Statuses[i], ":")
			}
			agreed = agreed && s == recorded
		}
		if agreed {
			return true
		}
	}
	return false
}
