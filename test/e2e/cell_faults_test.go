//go:build e2e && linux

package e2e

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/shoal-serving/shoal/client"
	"github.com/shoal-serving/shoal/test/servertest"
)

const (
	faultNodes  = 4
	faultModels = 8
	faultHedge  = 100 * time.Millisecond // the objective
	// faultRate is 70 % of what the devices of all nodes can run one by one; see simulatedModel.
	faultRate = 0.7 * faultNodes / 0.0033
)

// A faultyCell has four nodes, each with one device for all of its models, two Envoys, a cell and
// a follower. Toxiproxy adds 2 ms to what nodes answer.
type faultyCell struct {
	*cellUnderTest
	repository string
	toxics     *servertest.Toxiproxy
	envoys     [2]*hotEnvoy

	decider, follower          *exec.Cmd
	api, xds, followed, second string // addresses of the two
}

// A hotEnvoy can be replaced by another process, which takes over its sockets.
type hotEnvoy struct {
	proxy, admin string
	baseID       string // the file that has it
	epoch        int
	cmd          *exec.Cmd
}

func newFaultyCell(t *testing.T) *faultyCell {
	t.Helper()
	configs, wanted := map[string]string{}, "models:\n"
	for i := range faultModels {
		configs[fmt.Sprint("m", i)] = simulatedModel
		wanted += fmt.Sprintf("  m%d: {copies: 2, objective: 100ms, hedge: %v}\n", i, faultHedge)
	}
	f := &faultyCell{toxics: servertest.StartToxiproxy(t), repository: servertest.Repository(t, configs)}
	f.cellUnderTest = newCellOf(t, f.repository, wanted, faultNodes)
	f.edit(func(text string) string {
		for i, s := range f.nodes {
			for protocol, address := range upstreams(s) {
				name := fmt.Sprint(protocol, i)
				text = strings.Replace(text, strconv.Quote(address), strconv.Quote(f.toxics.Forward(name, address)), 1)
				f.toxics.Delay(name, 2)
			}
		}
		return text
	})
	f.api, f.xds, f.followed, f.second = servertest.FreeAddress(t), servertest.FreeAddress(t), servertest.FreeAddress(t), servertest.FreeAddress(t)
	f.startDecider()
	f.awaitPlaced(f.api)
	f.startFollower()
	f.awaitPlaced(f.followed)
	for i := range f.envoys {
		f.envoys[i] = &hotEnvoy{proxy: servertest.FreeAddress(t), admin: servertest.FreeAddress(t), baseID: filepath.Join(t.TempDir(), "base-id")}
		f.replaceEnvoy(i)
	}
	return f
}

func upstreams(s *servertest.Server) map[string]string {
	return map[string]string{"http": strings.TrimPrefix(s.HTTP, "http://"), "grpc": s.GRPC}
}

func (f *faultyCell) startDecider() {
	f.decider, _, _ = f.start("--state", f.state, "--address", f.api, "--xds-address", f.xds)
}

func (f *faultyCell) startFollower() {
	f.follower, _, _ = f.start("--follow", "http://"+f.api, "--state", f.state+".follower", "--address", f.followed, "--xds-address", f.second)
}

// revive starts a node again, at the addresses that it had.
func (f *faultyCell) revive(i int) {
	f.t.Helper()
	s := servertest.Listening(f.t, f.repository, "--model-control-mode=demand", fmt.Sprint("--zone=zone-", i))
	f.nodes[i] = s
	for protocol, address := range upstreams(s) {
		f.toxics.Call(fmt.Sprint("/proxies/", protocol, i), map[string]any{"upstream": address, "enabled": true})
	}
	f.awaitState(i, "ready")
	f.awaitPlaced(f.api)
}

func (f *faultyCell) awaitState(node int, state string) {
	f.t.Helper()
	servertest.Eventually(f.t, fmt.Sprint("node ", node, " is ", state), func() bool { return f.status(f.api).Nodes[node].State == state })
}

// replaceEnvoy starts an Envoy, or one that takes over from it. It returns when the new one answers
// and the old one has ended.
func (f *faultyCell) replaceEnvoy(i int) {
	f.t.Helper()
	e := f.envoys[i]
	flags := []string{"--use-dynamic-base-id", "--base-id-path", e.baseID}
	old := e.cmd
	if old != nil {
		id, err := os.ReadFile(e.baseID)
		if err != nil {
			f.t.Fatal(err)
		}
		e.epoch++
		flags = []string{"--base-id", strings.TrimSpace(string(id)), "--restart-epoch", strconv.Itoa(e.epoch)}
	}
	e.cmd = f.runEnvoy(e.proxy, e.admin, append(flags, "--drain-time-s", "5", "--parent-shutdown-time-s", "8"), f.xds, f.second)
	if old != nil {
		_ = old.Wait() // the new one ends it
	}
	web := f.connectTo(client.NewHTTP, e.proxy)
	servertest.Eventually(f.t, "Envoy answers", func() bool { return servertest.Ask(f.t.Context(), web, "m0", 1) == nil })
}

// An outcome is what a client saw of a request.
type outcome struct {
	sent time.Time
	took time.Duration
	err  error
}

// A steadyLoad sends requests at a fixed rate, whatever becomes of them.
type steadyLoad struct {
	f    *faultyCell
	stop func()

	judged int // failures that during has seen

	mu       sync.Mutex // guards the following
	outcomes []outcome
}

func (f *faultyCell) steady() *steadyLoad {
	f.t.Helper()
	l := &steadyLoad{f: f}
	var ways []*client.Client
	for _, e := range f.envoys {
		ways = append(ways, f.connectTo(client.NewHTTP, e.proxy), f.connectTo(client.NewGRPC, e.proxy))
	}
	ctx, cancel := context.WithCancel(f.t.Context())
	var sending sync.WaitGroup
	sending.Go(func() {
		began := time.Now()
		var sent sync.WaitGroup
		for n := 0; ctx.Err() == nil; n++ {
			time.Sleep(time.Until(began.Add(time.Duration(float64(n) / faultRate * float64(time.Second)))))
			sent.Go(func() {
				one, done := context.WithTimeout(context.Background(), 20*time.Second)
				defer done()
				o := outcome{sent: time.Now()}
				o.err = servertest.Ask(one, ways[n%len(ways)], fmt.Sprint("m", n/len(ways)%faultModels), 1)
				o.took = time.Since(o.sent)
				l.mu.Lock()
				l.outcomes = append(l.outcomes, o)
				l.mu.Unlock()
			})
		}
		sent.Wait()
	})
	l.stop = sync.OnceFunc(func() { cancel(); sending.Wait() })
	f.t.Cleanup(l.stop)
	return l
}

// between returns what became of the requests that were sent in a time.
func (l *steadyLoad) between(from, to time.Time) (outcomes []outcome) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, o := range l.outcomes {
		if !o.sent.Before(from) && o.sent.Before(to) {
			outcomes = append(outcomes, o)
		}
	}
	return outcomes
}

func p99(outcomes []outcome) time.Duration {
	took := make([]time.Duration, len(outcomes))
	for i, o := range outcomes {
		took[i] = o.took
	}
	slices.Sort(took)
	return took[len(took)*99/100]
}

func failures(outcomes []outcome) (n int, first error) {
	for _, o := range outcomes {
		if o.err != nil {
			n++
			first = cmp.Or(first, o.err)
		}
	}
	return n, first
}

// finish stops the load. Requests that took long to fail, or were sent between two faults, must
// not have failed either.
func (l *steadyLoad) finish() {
	t := l.f.t
	t.Helper()
	l.stop()
	failed, first := failures(l.outcomes)
	t.Logf("figures: in all: %d requests, %d failed", len(l.outcomes), failed)
	if failed > l.judged {
		t.Errorf("%d requests failed beside those above, the first of all with: %v", failed-l.judged, first)
	}
}

// during runs do under load, and for at least the given time. It prints a line of figures, fails
// the test if more requests failed than allowed, and returns what became of them.
func (l *steadyLoad) during(what string, atLeast time.Duration, allowed float64, do func()) []outcome {
	t := l.f.t
	t.Helper()
	sum := func(name string) (n int) {
		for _, e := range l.f.envoys {
			n += envoyStat(t, e.admin, name)
		}
		return n
	}
	attempts, retries := sum("upstream_rq_total"), sum("upstream_rq_retry")
	began := time.Now()
	do()
	time.Sleep(time.Until(began.Add(atLeast)))
	time.Sleep(time.Second) // what was sent is answered
	attempts, retries = sum("upstream_rq_total")-attempts, sum("upstream_rq_retry")-retries
	outcomes := l.between(began, time.Now().Add(-time.Second))
	failed, first := failures(outcomes)
	l.judged += failed
	t.Logf("figures: %s: %d requests, %d failed, attempts per request %.4f, p99 %v", what, len(outcomes), failed, float64(attempts)/float64(attempts-retries), p99(outcomes).Round(100*time.Microsecond))
	if float64(failed) > allowed*float64(len(outcomes)) {
		t.Errorf("%s: %d of %d requests failed, the first with: %v", what, failed, len(outcomes), first)
	}
	return outcomes
}

// Clients of a cell that send 70 % of what its devices can run one by one hardly notice that a
// node is killed or stands still, and not at all that nodes, Envoys and cells are stopped and
// started again.
func TestACellUnderFaults(t *testing.T) {
	f := newFaultyCell(t)
	l := f.steady()
	seconds := func(strict, otherwise float64) time.Duration {
		return time.Duration(servertest.StrictOr(strict, otherwise) * float64(time.Second))
	}
	time.Sleep(seconds(10, 2)) // policies learn
	quiet := l.during("no fault", seconds(30, 5), 0, func() {})

	l.during("SIGKILL of a node", seconds(30, 5), 0.0005, func() {
		f.nodes[0].Kill()
		f.awaitState(0, "gone")
		f.awaitPlaced(f.api)
	})
	f.revive(0)
	l.during("SIGTERM of a node", seconds(30, 5), 0, func() {
		f.nodes[1].Terminate()
		f.awaitState(1, "gone")
		f.awaitPlaced(f.api)
	})
	f.revive(1)

	var stopped time.Time
	still := seconds(30, 5)
	all := l.during("SIGSTOP of a node for "+still.String(), seconds(60, 6), 0, func() {
		stopped = time.Now()
		if err := f.nodes[2].Cmd.Process.Signal(syscall.SIGSTOP); err != nil {
			t.Fatal(err)
		}
		time.Sleep(still)
		if err := f.nodes[2].Cmd.Process.Signal(syscall.SIGCONT); err != nil {
			t.Fatal(err)
		}
	})
	var after []outcome
	hedged, late, ejected := 0, 0, time.Duration(0) // until Envoy tries the node again
	for _, o := range all {
		since := o.sent.Sub(stopped)
		if since >= time.Second {
			after = append(after, o)
		}
		if o.took >= faultHedge && since < 4*time.Second {
			hedged, ejected = hedged+1, max(ejected, since)
			if since > time.Second {
				late++
			}
		}
	}
	t.Logf("figures: SIGSTOP: %d requests went to the node, %d of them later than 1 s after it, the last one after %v; p99 %v before, %v from one second after it", hedged, late, ejected.Round(time.Millisecond), p99(quiet), p99(after))
	if hedged == 0 {
		t.Error("no request went to the node that stood still")
	}
	if *servertest.Strict && (ejected > time.Second || p99(after) > 2*p99(quiet)) {
		t.Errorf("the node gets requests for %v, want at most 1 s; the p99 is %v while it stands still, and %v without", ejected, p99(after), p99(quiet))
	}
	f.awaitState(2, "ready")
	f.awaitPlaced(f.api)

	l.during("all nodes, Envoys and cells restarted one by one", 0, 0, func() {
		for i := range f.nodes {
			f.nodes[i].Terminate()
			f.awaitState(i, "gone")
			f.awaitPlaced(f.api)
			f.revive(i)
		}
		for i := range f.envoys {
			f.replaceEnvoy(i)
		}
		servertest.Kill(f.follower)
		f.startFollower()
		f.awaitPlaced(f.followed)
		servertest.Kill(f.decider)
		f.startDecider()
		f.awaitPlaced(f.api)
	})
	down := seconds(600, 5)
	l.during("cell and follower down for "+down.String(), down, 0, func() {
		servertest.Kill(f.decider)
		servertest.Kill(f.follower)
	})
	l.finish()
}
