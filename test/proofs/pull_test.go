//go:build e2e

package proofs

import (
	"context"
	"regexp"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/shoal-serving/shoal/client"
	"github.com/shoal-serving/shoal/internal/bench"
	"github.com/shoal-serving/shoal/tensor"
	"github.com/shoal-serving/shoal/test/servertest"
)

// Models that take no time. The first is asked with as much as a text recogniser, the
// others with a picture; of pictures, one model joins rows and one does not.
const (
	instant = `backend: "simulated" max_batch_size: 16 instance_group { count: 2 } output { name: "y" data_type: TYPE_FP32 dims: 1024 } `
	joining = `dynamic_batching { max_queue_delay_microseconds: 0 } `
	line    = `input { name: "x" data_type: TYPE_FP32 dims: [ 1, 32, 100 ] } `
	photo   = `input { name: "x" data_type: TYPE_FP32 dims: [ 3, 224, 224 ] } `
)

var instants = map[string]string{"small": instant + joining + line, "large": instant + photo, "joined": instant + joining + photo}

// rowOf returns one row of zeros.
func rowOf(dims ...int64) []tensor.Tensor {
	shape := append([]int64{1}, dims...)
	size, err := tensor.ByteSize(tensor.FP32, shape)
	if err != nil {
		panic(err)
	}
	return []tensor.Tensor{{Name: "x", Type: tensor.FP32, Shape: shape, Data: make([]byte, size)}}
}

// askOver returns what asks a model over HTTP or gRPC over and over, until the test ends.
func askOver(t *testing.T, protocol, address, model string, in []tensor.Tensor) bench.Caller {
	t.Helper()
	return askWith(t, protocol, address, model, in, client.Options{})
}

// askWith is like askOver, with options of the client.
func askWith(t *testing.T, protocol, address, model string, in []tensor.Tensor, opts client.Options) bench.Caller {
	t.Helper()
	connect := bench.NewHTTP
	if protocol == "gRPC" {
		connect = bench.NewGRPC
	}
	c, err := connect(address, model, "", opts)
	if err == nil {
		err = c.Prepare([]bench.Request{{Inputs: in}})
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() }) // nothing is sent any more
	return c
}

// A pull is what a closed loop of clients saw.
type pull struct {
	perSecond float64
	p50       time.Duration
	cpu       float64 // of the server, for each answer, in microseconds
	clients   float64 // of the clients, likewise
}

// pullAt lets the given number of clients ask over and over.
func pullAt(t *testing.T, s *servertest.Server, c bench.Caller, clients int, d time.Duration) pull {
	t.Helper()
	l := servertest.AskInALoop(t, clients, d, func() error { return c.Infer(context.Background(), 0) },
		func() time.Duration { return s.Usage().CPU }, func() time.Duration { return testCPU(t) })
	return pull{perSecond: l.PerSecond, p50: l.P50, cpu: l.Used[0], clients: l.Used[1]}
}

// testCPU returns what the process of the test has used.
func testCPU(t *testing.T) time.Duration {
	t.Helper()
	var used syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &used); err != nil {
		t.Fatal(err)
	}
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}

const (
	crowded = 64 // clients
	pulling = 2 * time.Second
)

var goTime = regexp.MustCompile(`(?m)^go_cpu_classes_(gc_total|user)_cpu_seconds_total (\S+)$`)

// A goCPU is for how long the server has run Go code, in seconds, up to the end of the last garbage
// collection.
type goCPU struct{ garbage, rest float64 }

func goCPUOf(s *servertest.Server) (c goCPU) {
	s.T.Helper()
	found := goTime.FindAllStringSubmatch(s.MetricsPage(), -1)
	if len(found) != 2 {
		s.T.Fatalf("the metrics have %d times of Go code, want 2", len(found))
	}
	for _, f := range found {
		seconds, err := strconv.ParseFloat(f[2], 64)
		if err != nil {
			s.T.Fatal(err)
		}
		if f[1] == "user" {
			c.rest = seconds
		} else {
			c.garbage = seconds
		}
	}
	return c
}

// since returns the share of garbage collection since an earlier time.
func (c goCPU) since(before goCPU) float64 {
	garbage := c.garbage - before.garbage
	return garbage / (garbage + c.rest - before.rest)
}
