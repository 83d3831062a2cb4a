package trace

import (
	"slices"
	"strings"
	"testing"
)

// kept keeps spans.
type kept []*Span

func (k *kept) Export(s *Span) { *k = append(*k, s) }

const (
	parentID = "0af7651916cd43dd8448eb211c80319c"
	parent   = "00-" + parentID + "-b7ad6b7169203331-01"
)

func TestTraceparentIsReadAsW3CWritesIt(t *testing.T) {
	for _, c := range []struct {
		text        string
		sampled, ok bool
	}{
		{parent, true, true},
		{strings.TrimSuffix(parent, "1") + "0", false, true},
		{strings.TrimSuffix(parent, "01") + "03", true, true}, // other flags
		{"cc" + parent[2:], true, true},                       // a later version
		{"cc" + parent[2:] + "-more", true, true},
		{"cc" + parent[2:] + "more", false, false},
		{parent + "-more", false, false},
		{"ff" + parent[2:], false, false},
		{strings.ToUpper(parent), false, false},
		{"00-" + strings.Repeat("0", 32) + "-b7ad6b7169203331-01", false, false},
		{"00-" + parentID + "-" + strings.Repeat("0", 16) + "-01", false, false},
		{"0x" + parent[2:], false, false},
		{strings.Replace(parent, "-", "_", 1), false, false},
		{parent[:54], false, false},
		{"", false, false},
	} {
		got, sampled, ok := ParseTraceparent(c.text)
		if sampled != c.sampled || ok != c.ok || ok && (got.Trace.String() != parentID || got.Span.String() != "b7ad6b7169203331") {
			t.Errorf("%q: %v, sampled %t, valid %t; want sampled %t, valid %t", c.text, got, sampled, ok, c.sampled, c.ok)
		}
	}
	c, _, _ := ParseTraceparent(parent)
	if got := c.Traceparent(); got != parent {
		t.Errorf("written as %s, want %s", got, parent)
	}
}

// sampled returns which of n requests to the model m are traced, from 1.
func sampled(t *Tracer, n int) (which []int) {
	for i := range n {
		if t.Begin("http", "m", "", "") != nil {
			which = append(which, i+1)
		}
	}
	return which
}

func TestEveryNthRequestIsTracedUntilTheCountIsUsedUp(t *testing.T) {
	tr := New(&kept{}, Settings{On: true, Rate: 3, Count: 2})
	if got, want := sampled(tr, 12), []int{3, 6}; !slices.Equal(got, want) {
		t.Errorf("traced %v, want %v", got, want)
	}
	if got := tr.Settings("m").Count; got != 0 {
		t.Errorf("%d traces are left, want 0", got)
	}
	if tr.Begin("http", "m", parent, "") == nil {
		t.Error("a request that its client traces was not traced: rate and count do not apply to it")
	}
	for name, c := range map[string]Settings{"off": {Rate: 1, Count: -1}, "rate 0": {On: true, Count: -1}, "count 0": {On: true, Rate: 1}} {
		if got := sampled(New(&kept{}, c), 5); got != nil {
			t.Errorf("%s: traced %v", name, got)
		}
	}
}

func TestTheClientDecidesForTheServer(t *testing.T) {
	all := New(&kept{}, Settings{On: true, Rate: 1, Count: -1})
	if all.Begin("http", "m", strings.TrimSuffix(parent, "1")+"0", "") != nil {
		t.Error("a request was traced whose client does not trace it")
	}
	if all.Begin("http", "m", "no context", "") == nil {
		t.Error("a request with an invalid context was not traced: it counts as one without")
	}
	if New(&kept{}, Settings{Rate: 1}).Begin("http", "m", parent, "") != nil {
		t.Error("a request was traced although tracing is off")
	}
}

func TestAModelHasItsOwnSettings(t *testing.T) {
	tr := New(&kept{}, Settings{Rate: 1000, Count: -1})
	tr.Change("m", Change{On: new(true), Rate: new(uint64(2))})
	if got := sampled(tr, 5); !slices.Equal(got, []int{2, 4}) || tr.On("other") {
		t.Errorf("traced %v, and others %t; want 2 and 4 of the model alone", got, tr.On("other"))
	}
	tr.Change("", Change{On: new(true), Rate: new(uint64(1)), Count: new(int64(3))})
	if got := tr.Settings("m"); got != (Settings{On: true, Rate: 2, Count: 3}) {
		t.Errorf("%+v, want its own rate, and the count of all", got)
	}
	tr.Change("m", Change{Count: new(int64(5))})
	sampled(tr, 4)
	tr.Change("", Change{Rate: new(uint64(7))})
	if got := tr.Settings("m"); got != (Settings{On: true, Rate: 2, Count: 3}) {
		t.Errorf("%+v after another change, want the 3 traces that were left of its 5", got)
	}
	tr.Change("m", Change{ClearOn: true, ClearRate: true, ClearCount: true})
	if got, all := tr.Settings("m"), tr.Settings(""); got != all || all.Rate != 7 {
		t.Errorf("%+v after its settings were cleared, want those of all, %+v", got, all)
	}
	tr.Change("", Change{ClearOn: true, ClearRate: true, ClearCount: true})
	if got := tr.Settings(""); got != (Settings{Rate: 1000, Count: -1}) {
		t.Errorf("%+v after all were cleared, want those of the start", got)
	}
}

func TestOtherChangesLeaveTheCountAsItIs(t *testing.T) {
	tr := New(&kept{}, Settings{On: true, Rate: 1, Count: 2})
	sampled(tr, 5)
	tr.Change("", Change{Rate: new(uint64(1))})
	tr.Change("m", Change{Rate: new(uint64(1))})
	tr.Change("m", Change{On: new(true)})
	tr.Change("", Change{On: new(true)})
	if got := sampled(tr, 5); got != nil || tr.Settings("").Count != 0 {
		t.Errorf("traced %v, and %d are left, although both were used", got, tr.Settings("").Count)
	}
	tr.Change("", Change{Count: new(int64(1))})
	if got := sampled(tr, 5); len(got) != 1 {
		t.Errorf("traced %v, want one of the new count", got)
	}
}

func TestSpansOfARequestFormATree(t *testing.T) {
	spans := &kept{}
	root := New(spans, Settings{On: true}).Begin("grpc", "m", parent, "vendor=1")
	req := root.Request()
	step := req.Child()
	step.ExportRequest(&Span{Name: "step"})
	req.ExportPart(&Span{Name: "execute"})
	req.ExportQueue(&Span{Name: "queue"})
	req.ExportCompute(&Span{Name: "compute"})
	req.ExportRequest(&Span{Name: "m"})
	root.End("")
	names, parents := map[SpanID]string{}, map[string]string{}
	for _, s := range *spans {
		if names[s.Span] != "" || s.Trace.String() != parentID || s.State != "vendor=1" {
			t.Errorf("span %s: %+v, want its own ID in the client's trace", s.Name, s.Context)
		}
		names[s.Span] = s.Name
	}
	for _, s := range *spans {
		parents[s.Name] = names[s.Parent]
	}
	for name, want := range map[string]string{"InferRequest": "", "m": "InferRequest", "queue": "m", "compute": "m", "execute": "compute", "step": "compute"} {
		if got := parents[name]; got != want {
			t.Errorf("%s is a part of %q, want %q", name, got, want)
		}
	}
	if last := (*spans)[5]; !last.Remote || !last.Server || last.Parent.String() != "b7ad6b7169203331" {
		t.Errorf("the first span is %+v, want a child of the client's", last)
	}
}

func TestAModelContinuesATraceThatItGot(t *testing.T) {
	tr := New(&kept{}, Settings{On: true})
	req := tr.Begin("http", "m", parent, "").Request()
	if got := tr.Continue(req.Compute().Traceparent(), ""); got == nil || got.Trace != req.Trace || got.parent != req.compute {
		t.Errorf("continued as %+v, want a child of %+v", got, req.Compute())
	}
	if tr.Continue("", "") != nil || (*Tracer)(nil).Continue(parent, "") != nil {
		t.Error("a request without a context, or of a server that does not trace, is traced")
	}
}

func TestARequestThatIsNotTracedAllocatesNothing(t *testing.T) {
	for name, tr := range map[string]*Tracer{"none": nil, "off": New(&kept{}, Settings{Rate: 1}), "unsampled": New(&kept{}, Settings{On: true, Rate: 1 << 30, Count: -1})} {
		if n := testing.AllocsPerRun(100, func() {
			var root *Root
			if tr.On("m") {
				root = tr.Begin("http", "m", "", "")
			}
			_ = root.Request().Child()
			root.End("")
		}); n != 0 {
			t.Errorf("%s: %v allocations, want none", name, n)
		}
	}
}
