//go:build e2e

package cost

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/shoal-serving/shoal/client"
	"github.com/shoal-serving/shoal/test/servertest"
)

var rewrite = flag.Bool("rewrite", false, "write the figures of this server in place of those of the release")

const (
	released = "testdata/0.1.0.json" // figures of the release, by transport
	most     = 1.10                  // times the figure of the release at which the gate fails
	fewest   = 0.5                   // times that figure: with less, not all was counted
	requests = 300                   // per count
	counts   = 5                     // of which the least is taken: what varies is other work, and adds
)

// A figure is what one request costs the server. Instructions are those outside Go's runtime,
// and those with which the runtime copies and clears memory. How long the runtime looks for a
// goroutine to run, and a simulated device at the clock, depends on the machine; what the runtime is
// asked for is counted in calls.
type figure struct {
	Instructions float64 `json:"instructions"`
	Allocations  float64 `json:"allocations"`
	Goroutines   float64 `json:"goroutines"`
}

// config is a model that computes nothing: a request is nearly all protocol and scheduling.
// Its rows have 12.8 KB. It leaves nothing to the automatic policy, which computes more or
// less depending on when requests arrive; a benchmark has its decisions.
const config = `
backend: "simulated"
max_batch_size: 8
input [ { name: "x" data_type: TYPE_FP32 dims: [ 3200 ] } ]
output [ { name: "y" data_type: TYPE_FP32 dims: [ 16 ] } ]
instance_group [ { count: 1 } ]
dynamic_batching { max_queue_delay_microseconds: 0 }
`

// longer makes every call take longer than the reader of the local socket runs it by itself
// (a millisecond), also on a fast machine: what a request costs must not depend on whether
// another goroutine takes over reading.
const longer = `
parameters { key: "fixed_us" value { string_value: "3000" } }
`

func TestARequestCostsNoMoreThanInTheRelease(t *testing.T) {
	if _, err := exec.LookPath("valgrind"); err != nil && os.Getenv("CI") == "" {
		t.Skip("needs valgrind")
	}
	socket := filepath.Join(t.TempDir(), "socket")
	s, dump := startUnderCallgrind(t, servertest.Repository(t, map[string]string{"m": config, "longer": config + longer}), "--local-socket", socket)
	x := client.NewTensor("x", make([]float32, 3200), 1, 3200)
	calls := func(c *client.Client) func(n int) {
		return func(n int) {
			for range n {
				if _, err := c.Infer(t.Context(), &client.Request{Model: "m", Inputs: []client.Tensor{x}}); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	got := map[string]figure{}
	for _, transport := range []struct {
		name string
		call func(n int)
	}{{"http", calls(s.Web())}, {"grpc", calls(s.Client())}, {"local", localCalls(t, socket)}} {
		transport.call(100) // connections, buffers and caches
		dump()
		least := figure{math.Inf(1), math.Inf(1), math.Inf(1)}
		for range counts {
			transport.call(requests)
			f := dump().per(requests)
			least = figure{min(least.Instructions, f.Instructions), min(least.Allocations, f.Allocations), min(least.Goroutines, f.Goroutines)}
		}
		got[transport.name] = least
	}
	if *rewrite {
		write(t, got)
	}
	compare(t, got)
}

// compare fails if a request costs much more than in the release.
func compare(t *testing.T, got map[string]figure) {
	var want map[string]figure
	text, err := os.ReadFile(released)
	if err == nil {
		err = json.Unmarshal(text, &want)
	}
	if err != nil || len(want) != len(got) {
		t.Fatalf("%s has %d transports, want %d: %v", released, len(want), len(got), err)
	}
	for _, transport := range slices.Sorted(maps.Keys(got)) {
		g, w := got[transport], want[transport]
		t.Logf("%-5s %6.0f instructions, %.3f times those of the release; %.1f allocations and %.1f goroutines, %.1f and %.1f in the release",
			transport, g.Instructions, g.Instructions/w.Instructions, g.Allocations, g.Goroutines, w.Allocations, w.Goroutines)
		if !(g.Instructions >= fewest*w.Instructions) {
			t.Errorf("%s: a request takes %.0f instructions, less than %.1f times the %.0f of the release: not all was counted", transport, g.Instructions, fewest, w.Instructions)
		}
		if !(g.Instructions <= most*w.Instructions) {
			t.Errorf("%s: a request takes %.0f instructions, %.3f times the %.0f of the release; at most %.2f times are allowed", transport, g.Instructions, g.Instructions/w.Instructions, w.Instructions, most)
		}
		if !(g.Allocations <= most*w.Allocations+0.5) {
			t.Errorf("%s: a request takes %.1f allocations, %.1f in the release", transport, g.Allocations, w.Allocations)
		}
		if !(g.Goroutines <= w.Goroutines+0.5) {
			t.Errorf("%s: a request starts %.1f goroutines, %.1f in the release", transport, g.Goroutines, w.Goroutines)
		}
	}
}

func write(t *testing.T, figures map[string]figure) {
	text, err := json.MarshalIndent(figures, "", "\t")
	if err == nil {
		err = os.WriteFile(released, append(text, '\n'), 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// startUnderCallgrind starts the server with a counter. dump returns what it has executed since
// the last call of dump.
func startUnderCallgrind(t *testing.T, repository string, flags ...string) (s *servertest.Server, dump func() figure) {
	dumps := filepath.Join(t.TempDir(), "dump")
	s = servertest.StartUnder(t, []string{
		// One thread at a time, without preemption by signals, which callgrind does not survive,
		// and without garbage collection, which comes at times of its own.
		"env", "GODEBUG=asyncpreemptoff=1", "GOMAXPROCS=1", "GOGC=off",
		"valgrind", "-q", "--tool=callgrind", "--callgrind-out-file=" + dumps,
		"--dump-before=*kservegrpc*ServerLive", // callgrind_control sometimes waits for ever
	}, repository, flags...)
	n := 0
	asked := s.Client()
	return s, func() (sum figure) {
		t.Helper()
		if live, err := asked.Live(t.Context()); err != nil || !live {
			t.Fatalf("the server is live: %v, %v", live, err)
		}
		// One that was asked when the server started may be counted late, and be a dump more.
		for {
			f, err := os.Open(fmt.Sprintf("%s.%d", dumps, n+1))
			if errors.Is(err, fs.ErrNotExist) && sum.Instructions > 0 {
				return sum
			}
			if err != nil {
				t.Fatal(err)
			}
			part, err := read(f)
			_ = f.Close()
			if err != nil {
				t.Fatal(err)
			}
			sum = figure{sum.Instructions + part.Instructions, sum.Allocations + part.Allocations, sum.Goroutines + part.Goroutines}
			n++
		}
	}
}

func (f figure) per(n int) figure {
	return figure{f.Instructions / float64(n), f.Allocations / float64(n), f.Goroutines / float64(n)}
}

// read sums up a dump. It has a line for each function, each call and each source line, whose
// second field is the number of instructions; the line after a call has those of the callee, which
// are counted there. A function is named where it first occurs, "(12) name", and is "(12)" from
// then on; what callgrind takes for a recursion is "name'2".
func read(dump io.Reader) (f figure, err error) {
	lines := bufio.NewScanner(dump)
	lines.Buffer(nil, 1<<20)
	names := map[string]string{}
	function, callee, ofCallee := "", "", false
	for lines.Scan() {
		key, value, _ := strings.Cut(lines.Text(), "=")
		switch key {
		case "fn", "cfn":
			number, name, named := strings.Cut(value, " ")
			if named {
				names[number], _, _ = strings.Cut(name, "'")
			}
			if key == "fn" {
				function = names[number]
			} else {
				callee = names[number]
			}
		case "calls":
			n, _, _ := strings.Cut(value, " ")
			count, err := strconv.ParseFloat(n, 64)
			if err != nil {
				return f, err
			}
			switch callee {
			case "runtime.mallocgc":
				f.Allocations += count
			case "runtime.newproc":
				f.Goroutines += count
			}
			ofCallee = true
		default:
			if !strings.ContainsAny(key[:min(1, len(key))], "+-*0123456789") {
				continue
			}
			_, n, _ := strings.Cut(key, " ")
			count, err := strconv.ParseFloat(n, 64)
			if err != nil {
				return f, err
			}
			if !ofCallee && counted(function) {
				f.Instructions += count
			}
			ofCallee = false
		}
	}
	if f.Instructions == 0 || f.Allocations == 0 {
		return f, fmt.Errorf("the dump has %v instructions and %v allocations", f.Instructions, f.Allocations)
	}
	return f, lines.Err()
}

// counted reports whether the instructions of a function are a request's. A simulated device looks
// at the clock until its time has passed: how often depends on the machine.
func counted(function string) bool {
	for _, waits := range []string{"time.", module + "engine/simulated.", module + "device.", module + "pacer."} {
		if strings.HasPrefix(function, waits) {
			return false
		}
	}
	inRuntime, ok := strings.CutPrefix(function, "runtime.")
	return !ok || strings.HasPrefix(inRuntime, "memmove") || strings.HasPrefix(inRuntime, "memclr")
}

const module = "github.com/shoal-serving/shoal/internal/"

// localCalls returns a function that calls the model over the local socket, with the Python
// package.
func localCalls(t *testing.T, socket string) func(n int) {
	const script = `
import sys, numpy, shoal
model = shoal.load("longer", url="unix:" + sys.argv[1])
x = numpy.zeros((1, 3200), numpy.float32)
for line in sys.stdin:
    for _ in range(int(line)):
        model.forward(x)
    print("done", flush=True)
`
	source, err := filepath.Abs(filepath.Join(servertest.Root, "python", "src"))
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), servertest.PythonInterpreter(t), "-c", script, socket)
	cmd.Env = append(os.Environ(), "PYTHONPATH="+source)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	in, answers := servertest.Converse(t, cmd)
	return func(n int) {
		t.Helper()
		_, _ = fmt.Fprintln(in, n) // if it fails, there is no answer
		if !answers.Scan() {
			_ = cmd.Wait()
			t.Fatalf("the client ended: %s", &stderr)
		}
	}
}
