package discovery

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"testing"
	"testing/synctest"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/shoal-serving/shoal/internal/leak"
)

func TestMain(m *testing.M) { leak.Main(m) }

// An envoy is a client that receives when the test says so.
type envoy struct {
	grpc.ServerStream
	t         *testing.T
	requests  chan *discoveryv3.DeltaDiscoveryRequest
	responses chan *discoveryv3.DeltaDiscoveryResponse
}

func (e *envoy) Recv() (*discoveryv3.DeltaDiscoveryRequest, error) {
	if r, open := <-e.requests; open {
		return r, nil
	}
	return nil, io.EOF
}

func (e *envoy) Send(r *discoveryv3.DeltaDiscoveryResponse) error {
	e.responses <- r
	return nil
}

// connect runs test with a table and an Envoy that has asked for endpoints.
func connect(t *testing.T, first *discoveryv3.DeltaDiscoveryRequest, test func(table *Table, e *envoy)) {
	synctest.Test(t, func(t *testing.T) {
		table := New(slog.New(slog.DiscardHandler))
		set(t, table, "a", "1")
		set(t, table, "b", "1")
		e := &envoy{t: t, requests: make(chan *discoveryv3.DeltaDiscoveryRequest), responses: make(chan *discoveryv3.DeltaDiscoveryResponse)}
		ended := make(chan error)
		go func() { ended <- table.DeltaAggregatedResources(e) }()
		e.ask(first)
		e.wants("before the table is open")
		table.Open()
		synctest.Wait()
		test(table, e)
		close(e.requests)
		if err := <-ended; !errors.Is(err, io.EOF) {
			t.Error(err)
		}
		if streams, _ := table.Figures(); streams != 0 {
			t.Errorf("%d streams after the last one ended", streams)
		}
	})
}

func (e *envoy) ask(r *discoveryv3.DeltaDiscoveryRequest) {
	r.TypeUrl = Endpoints
	e.requests <- r
	synctest.Wait()
}

func set(t *testing.T, table *Table, name, value string) {
	t.Helper()
	if err := table.Update(Endpoints, map[string]proto.Message{name: wrapperspb.String(value)}, nil); err != nil {
		t.Fatal(err)
	}
}

// receive returns the names of what was sent, and of what was removed with a minus.
func (e *envoy) receive() (names []string) {
	e.t.Helper()
	synctest.Wait()
	select {
	case r := <-e.responses:
		for _, one := range r.GetResources() {
			names = append(names, one.GetName())
		}
		for _, name := range r.GetRemovedResources() {
			names = append(names, "-"+name)
		}
	default:
	}
	slices.Sort(names)
	return names
}

func (e *envoy) wants(why string, names ...string) {
	e.t.Helper()
	if got := e.receive(); !slices.Equal(got, names) {
		e.t.Errorf("%s: received %v, want %v", why, got, names)
	}
}

func TestAClientGetsWhatItAskedForAndWhatChangesOfIt(t *testing.T) {
	connect(t, &discoveryv3.DeltaDiscoveryRequest{ResourceNamesSubscribe: []string{"a", "none"}}, func(table *Table, e *envoy) {
		e.wants("at first", "-none", "a")
		set(t, table, "b", "2")
		e.wants("another one's change")
		set(t, table, "a", "1")
		e.wants("a change to the same")
		set(t, table, "a", "2")
		set(t, table, "none", "1")
		e.wants("two changes", "a", "none")
		e.ask(&discoveryv3.DeltaDiscoveryRequest{ResourceNamesUnsubscribe: []string{"a"}})
		set(t, table, "a", "3")
		e.wants("a change of what it does not want any more")
	})
}

func TestChangesWhileAStreamIsBusyAreSentTogether(t *testing.T) {
	connect(t, &discoveryv3.DeltaDiscoveryRequest{ResourceNamesSubscribe: []string{"a", "b"}}, func(table *Table, e *envoy) {
		for _, value := range []string{"2", "3", "4"} { // the first response waits
			set(t, table, "a", value)
			set(t, table, "b", value)
		}
		if err := table.Update(Endpoints, nil, []string{"b"}); err != nil {
			t.Fatal(err)
		}
		e.wants("at first", "a", "b")
		e.wants("all changes", "-b", "a")
		e.wants("nothing else")
	})
}

func TestAClientThatComesBackGetsWhatDiffers(t *testing.T) {
	versions := map[string]string{}
	connect(t, &discoveryv3.DeltaDiscoveryRequest{ResourceNamesSubscribe: []string{"a", "b"}}, func(_ *Table, e *envoy) {
		for _, r := range (<-e.responses).GetResources() {
			versions[r.GetName()] = r.GetVersion()
		}
	})
	versions["b"], versions["c"] = "old", "old"
	connect(t, &discoveryv3.DeltaDiscoveryRequest{ResourceNamesSubscribe: []string{"a", "b", "c"}, InitialResourceVersions: versions}, func(_ *Table, e *envoy) {
		e.wants("another table with the same resources", "-c", "b")
		e.ask(&discoveryv3.DeltaDiscoveryRequest{ResourceNamesSubscribe: []string{"a"}})
		e.wants("asked for again", "a")
	})
}

func TestARefusedConfigurationIsCounted(t *testing.T) {
	connect(t, &discoveryv3.DeltaDiscoveryRequest{}, func(table *Table, e *envoy) {
		e.ask(&discoveryv3.DeltaDiscoveryRequest{ErrorDetail: &status.Status{Message: "no such filter"}})
		if streams, rejected := table.Figures(); streams != 1 || rejected != 1 {
			t.Errorf("%d streams, %d refused", streams, rejected)
		}
	})
}

// Clients invent names of models.
func TestNamesThatDoNotExistAreForgottenIfTheyAreMany(t *testing.T) {
	connect(t, &discoveryv3.DeltaDiscoveryRequest{ResourceNamesSubscribe: []string{"a"}}, func(table *Table, e *envoy) {
		e.wants("at first", "a")
		held := func() (n int) {
			for s := range table.streams {
				n = len(s.sent[Endpoints])
			}
			return n
		}
		for i := range 3 {
			var names []string
			for j := range maxMissing/2 + 1 {
				names = append(names, fmt.Sprint("none", i, "-", j))
			}
			e.ask(&discoveryv3.DeltaDiscoveryRequest{ResourceNamesSubscribe: names})
			if got := e.receive(); len(got) != len(names) {
				t.Errorf("%d of %d names are answered", len(got), len(names))
			}
		}
		if got := held(); got != 1+maxMissing {
			t.Errorf("%d names are held", got)
		}
		e.ask(&discoveryv3.DeltaDiscoveryRequest{ResourceNamesSubscribe: []string{"none2-0"}})
		e.wants("a forgotten name is asked for again", "-none2-0")
		set(t, table, "b", "2")
		e.wants("what existed before changes")
		set(t, table, "none2-0", "1")
		e.wants("a forgotten name exists now", "none2-0")
		set(t, table, "none0-0", "1")
		e.wants("one that is not forgotten exists now", "none0-0")
		e.ask(&discoveryv3.DeltaDiscoveryRequest{ResourceNamesSubscribe: []string{"none2-1"}})
		e.wants("another one has its place", "-none2-1")
		set(t, table, "none2-1", "1")
		e.wants("and exists", "none2-1")
		e.ask(&discoveryv3.DeltaDiscoveryRequest{ResourceNamesUnsubscribe: []string{"none0-1"}})
		if got := held(); got != 1+3+maxMissing-2 { // those that exist now, and those that do not
			t.Errorf("%d names are held", got)
		}
	})
}
