package batching_test

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/shoal-serving/shoal/internal/batching"
	"github.com/shoal-serving/shoal/internal/batching/automatic"
	"github.com/shoal-serving/shoal/internal/device"
	"github.com/shoal-serving/shoal/internal/leak"
	"github.com/shoal-serving/shoal/internal/script"
	"github.com/shoal-serving/shoal/internal/simulate"
)

func TestMain(m *testing.M) { leak.Main(m) }

// TestScripts plays the stories in testdata. Each block is a world of its own:
// what is there, what happens, and below the dashes what the core made of it.
//
//	device slots=1 slowdown=1,1.4     batches that may run at once, for models that take turns;
//	                                  how many times longer one takes while 1, 2, … run
//	model NAME max=8 takes=300ms      a model; each of these may be left out:
//	      row=5ms                     each row takes so much longer
//	      policy=none                 requests are never combined (without it: Triton's rule)
//	      policy=automatic            what is not set is measured; policy=cold begins without calibration
//	      policy=collect              the rule of MMS, with max and delay
//	      preferred=4,8 delay=5ms     sizes that leave at once; how long others are held
//	      instances=2                 how many there are from the start (1)
//	      levels=2 default=2          priority levels, and that of requests which name none
//	      order=kept lanes=apart      deliver by arrival; let shapes overtake each other
//	      turns=taken                 ask the device before each batch
//	      shared=10 bytes=1000        the bound of levels that share one
//	      predicts=yes slo=50ms       it is known how long batches take; when requests should be answered
//	level N max=2 timeout=100ms       the queue policy of a level of the model above;
//	      shares=yes                  its bound is the shared one
//	      override=yes late=behind    requests may shorten it; the late stand behind instead of being rejected
//	      ends=yes                    the timeout of a request is its deadline
//	at T NAME arrives rows=2          a request; rows=1 shape=0 priority= timeout= deadline= on=INSTANCE tenant= weight= model=
//	      slow=500ms bytes=100        its batch takes so much longer; what it keeps in memory
//	at T NAME leaves                  its client is gone
//	at T instance N joins|leaves      of the first model, or model=
//	at T instance N breaks            it has left, and cannot be started
//	at T closes                       nothing more arrives; model=
//	clients NAME 4 think=1ms,2ms      clients NAME1, NAME2, … that send a request, wait for the answer, think so long in
//	      until=1s rows=2 shape=1     turn, and send the next; none is sent from the given time on
//	told from=90ms                    what happens before is not told
func TestScripts(t *testing.T) {
	script.Run(t, "testdata/*.txt", func(*testing.T) func([]string) string {
		return func(lines []string) string {
			s := story{items: map[string]*batching.Item{}, models: map[string]*simulate.Model{}, slow: map[*batching.Item]time.Duration{}, back: map[*batching.Item]func(){}}
			return s.play(lines)
		}
	})
}

type story struct {
	world  *simulate.World
	models map[string]*simulate.Model
	first  *simulate.Model

	slowdown []float64 // slowdown of the device

	items map[string]*batching.Item
	slow  map[*batching.Item]time.Duration // items that make their batch take longer
	tell  strings.Builder
	from  time.Duration             // events before it are not printed
	back  map[*batching.Item]func() // clients that send their next request when they are answered
	said  string                    // beginning of the current line, so that deliveries share it
}

func (s *story) play(lines []string) string {
	s.world = simulate.NewWorld(nil, 1)
	s.world.Trace = s.trace
	for len(lines) > 0 {
		n := 1
		for n < len(lines) && strings.HasPrefix(lines[n], "level ") {
			n++
		}
		if err := s.line(lines[0], lines[1:n]); err != nil {
			return fmt.Sprintf("%s: %v", lines[0], err)
		}
		lines = lines[n:]
	}
	s.world.Run(batching.Never)
	s.end()
	return s.tell.String()
}

func (s *story) line(line string, levels []string) error {
	f := strings.Fields(line)
	switch {
	case f[0] == "device":
		opt, err := options(f[1:], "slots", "slowdown")
		var slow []float64
		for v := range strings.SplitSeq(opt["slowdown"], ",") {
			if x, _ := strconv.ParseFloat(v, 64); x > 0 {
				slow = append(slow, x)
			}
		}
		s.world = simulate.NewWorld(slow, number(opt["slots"]))
		s.world.Trace = s.trace
		s.slowdown = slow
		return err
	case f[0] == "told":
		opt, err := options(f[1:], "from")
		s.from = duration(opt["from"])
		return err
	case f[0] == "clients" && len(f) > 2:
		return s.clients(f[1], number(f[2]), f[3:])
	case f[0] == "model":
		return s.model(f[1], f[2:], levels)
	case f[0] == "at" && len(f) > 2:
		at, err := time.ParseDuration(f[1])
		if err != nil {
			return err
		}
		return s.happens(at, f[2:])
	}
	return fmt.Errorf("not a command; see TestScripts")
}

func (s *story) model(name string, words, levels []string) error {
	opt, err := options(words, "max", "takes", "row", "policy", "preferred", "delay", "instances", "levels", "default", "order", "lanes", "turns", "shared", "bytes", "predicts", "slo")
	if err != nil {
		return err
	}
	cfg := batching.Config{
		MaxRows: number(opt["max"]), KeepOrder: opt["order"] == "kept", OvertakeOtherShapes: opt["lanes"] == "apart", TakeTurns: opt["turns"] == "taken",
		Levels: make([]batching.Level, max(1, number(opt["levels"]))), DefaultLevel: max(1, number(opt["default"])),
		Shared: batching.Bound{Requests: number(opt["shared"]), Bytes: int64(number(opt["bytes"]))},
	}
	n := 1
	if opt["instances"] != "" {
		n = number(opt["instances"])
	}
	curve := device.Curve{Fixed: duration(opt["takes"]), PerRow: duration(opt["row"])}
	switch opt["policy"] {
	case "none":
	case "automatic", "cold":
		learns := automatic.Options{MaxRows: cfg.MaxRows, Instances: n}
		if opt["policy"] == "automatic" {
			learns.Profile = simulate.Calibrated(curve, s.slowdown, cfg.MaxRows, n)
		}
		cfg.Policy = automatic.New(learns)
	case "collect":
		cfg.Policy = &batching.Collect{Size: cfg.MaxRows, MaxDelay: duration(opt["delay"])}
	default:
		p := batching.Triton{MaxRows: cfg.MaxRows, MaxDelay: duration(opt["delay"])}
		for v := range strings.SplitSeq(opt["preferred"], ",") {
			if v != "" {
				p.Preferred = append(p.Preferred, number(v))
			}
		}
		cfg.Policy = p
	}
	for _, line := range levels {
		f := strings.Fields(line)
		opt, err := options(f[2:], "max", "timeout", "override", "late", "shares", "ends")
		if err != nil {
			return err
		}
		cfg.Levels[number(f[1])-1] = batching.Level{
			MaxQueue: number(opt["max"]), Timeout: duration(opt["timeout"]), AllowOverride: opt["override"] == "yes", DelayOnTimeout: opt["late"] == "behind",
			UseSharedBound: opt["shares"] == "yes", TimeoutIsDeadline: opt["ends"] == "yes",
		}
	}
	if opt["predicts"] == "yes" {
		cfg.Predictor, cfg.Objective = exactly{curve.Fixed, curve.PerRow}, duration(opt["slo"])
	}
	m := s.world.Add(name, cfg, func(batch []*batching.Item) time.Duration {
		rows, slow := 0, time.Duration(0)
		for _, it := range batch {
			rows += it.Rows
			slow += s.slow[it]
		}
		return curve.Takes(rows) + slow
	})
	s.models[name] = m
	if s.first == nil {
		s.first = m
	}
	for i := range n {
		m.Up(i + 1)
	}
	return nil
}

// clients adds a closed loop for the first model.
func (s *story) clients(name string, n int, words []string) error {
	opt, err := options(words, "think", "until", "rows", "shape")
	var think []time.Duration
	for v := range strings.SplitSeq(opt["think"], ",") {
		think = append(think, duration(v))
	}
	pauses := 0
	for i := range n {
		it := &batching.Item{}
		send := func() {
			*it = batching.Item{Rows: max(1, number(opt["rows"])), Shape: uint64(number(opt["shape"])), Owner: name + strconv.Itoa(i+1)}
			s.first.Arrive(it)
		}
		s.back[it] = func() {
			pause := think[pauses%len(think)]
			pauses++
			if at := s.world.Now() + pause; at < duration(opt["until"]) {
				s.world.At(at, send)
			}
		}
		s.world.At(0, send)
	}
	return err
}

func (s *story) happens(at time.Duration, f []string) error {
	words := f[min(2, len(f)):]
	if f[0] == "closes" {
		words = f[1:]
	}
	opt, err := options(words, "rows", "shape", "priority", "timeout", "deadline", "way", "on", "tenant", "weight", "model", "slow", "joins", "leaves", "breaks", "bytes")
	if err != nil {
		return err
	}
	m := s.first
	if opt["model"] != "" {
		m = s.models[opt["model"]]
	}
	name := f[0]
	switch {
	case name == "instance" && len(f) > 2 && f[2] == "joins":
		s.world.At(at, func() { m.Up(number(f[1])) })
	case name == "instance" && len(f) > 2 && f[2] == "leaves":
		s.world.At(at, func() { m.Down(number(f[1])) })
	case name == "instance" && len(f) > 2 && f[2] == "breaks":
		s.world.At(at, func() { m.Break(number(f[1])) })
	case name == "closes":
		s.world.At(at, m.Close)
	case len(f) < 2:
		return fmt.Errorf("nothing known can happen here; see TestScripts")
	case f[1] == "arrives":
		rows := 1
		if opt["rows"] != "" {
			rows = number(opt["rows"])
		}
		it := &batching.Item{
			Rows: rows, Shape: uint64(number(opt["shape"])), Priority: uint64(number(opt["priority"])),
			Tenant: number(opt["tenant"]), Weight: number(opt["weight"]),
			Timeout: duration(opt["timeout"]), Deadline: duration(opt["deadline"]), TransportDelay: duration(opt["way"]), Instance: number(opt["on"]), Owner: name,
			Bytes: int64(number(opt["bytes"])),
		}
		s.items[name], s.slow[it] = it, duration(opt["slow"])
		s.world.At(at, func() { m.Arrive(it) })
	case f[1] == "leaves":
		s.world.At(at, func() { m.Cancel(s.items[name]) })
	default:
		return fmt.Errorf("nothing known can happen here; see TestScripts")
	}
	return nil
}

func (s *story) trace(o simulate.Occurrence) {
	who := strconv.Itoa(o.Action.Instance)
	if len(s.models) > 1 {
		who = o.Model.Name + "/" + who
	}
	switch a := o.Action; {
	case o.Ended:
	case a.Kind == batching.Run:
		rows := 0
		s.say(o.At, who+" takes")
		for _, it := range a.Items {
			rows += it.Rows
			s.write(o.At, " %s", it.Owner)
		}
		s.write(o.At, " (%d rows, %v)", rows, a.Reason)
		s.end()
	case a.Kind == batching.Deliver:
		if again := s.back[a.Item]; again != nil {
			again()
		}
		s.say(o.At, "delivered:")
		s.write(o.At, " %s", a.Item.Owner)
	case a.Kind == batching.Reject:
		s.say(o.At, fmt.Sprintf("%s is rejected: %v", a.Item.Owner, a.Verdict))
		if a.RetryAfter > 0 {
			s.write(o.At, ", again in %v", a.RetryAfter)
		}
		s.end()
	case a.Kind == batching.Stop:
		s.say(o.At, who+" is stopped")
		s.end()
	case a.Kind == batching.Leave:
		s.say(o.At, who+" has left")
		s.end()
	}
}

// exactly predicts the exact duration of batches without slowdown.
type exactly struct{ takes, row time.Duration }

func (e exactly) Predict(size batching.Size, _ int) time.Duration {
	return e.takes + time.Duration(size.Rows)*e.row
}

// say begins a line, or continues the current one if it begins with the same words.
func (s *story) say(at time.Duration, words string) {
	begin := fmt.Sprintf("%-6v %s", at, words)
	if begin == s.said || at < s.from {
		return
	}
	s.end()
	s.said = begin
	s.tell.WriteString(begin)
}

func (s *story) write(at time.Duration, format string, words ...any) {
	if at >= s.from {
		fmt.Fprintf(&s.tell, format, words...)
	}
}

func (s *story) end() {
	if s.said != "" {
		s.tell.WriteByte('\n')
	}
	s.said = ""
}

func options(words []string, known ...string) (map[string]string, error) {
	opt := map[string]string{}
	for _, w := range words {
		k, v, _ := strings.Cut(w, "=")
		found := false
		for _, name := range known {
			found = found || name == k
		}
		if !found {
			return nil, fmt.Errorf("%q is not known here; known are %v", k, known)
		}
		opt[k] = v
	}
	return opt, nil
}

func number(s string) int {
	n, _ := strconv.Atoi(s)
	return n
}

func duration(s string) time.Duration {
	d, _ := time.ParseDuration(s)
	return d
}
