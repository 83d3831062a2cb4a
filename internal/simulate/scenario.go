package simulate

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/shoal-serving/shoal/internal/batching"
	"github.com/shoal-serving/shoal/internal/device"
)

// A Scenario is what is to be simulated: requests, and the settings to try them
// with. [Load] reads one from a file; docs/simulate.md says how to write it.
type Scenario struct {
	Title    string
	Text     string // what a reader should know about it
	Unit     Unit   // that times are shown in
	Arrivals []Arrival
	Recorded []Arrival // requests of a recording, by time and without ids
	Settings []Setting
}

// An Arrival is one request that comes at a time of its own.
type Arrival struct {
	At       batching.Time
	ID       string
	Model    int // index into the models of each setting
	Rows     int
	Shape    uint64
	Priority uint64
	Timeout  time.Duration // the longest time in the queue that it asks for; 0 means none
	Deadline batching.Time // answered by then; 0 means none
	CancelAt batching.Time // when its client leaves; 0 means never
}

// A Setting is one way of serving the requests, complete in itself.
type Setting struct {
	Name     string
	Slowdown []float64 // of the device, as in [device.Device]
	Slots    int       // batches that may run at once, for which the models take turns; 0 means any number, and no turns
	Models   []ModelSetting
	Traffic  []Traffic
}

// A ModelSetting is one model and how it is served.
type ModelSetting struct {
	Name      string
	Config    batching.Config
	Curve     device.Curve
	Instances int // at least 1

	// Automatic has each run begin with an automatic policy of its own in place of
	// the config's. Calibrated says that it knows from the start how long the model
	// takes.
	Automatic, Calibrated bool

	// Objective is how long requests may take to count as answered in time. With
	// Admission, each run learns how long batches take, and turns away who would be
	// answered later than that, or after its deadline. Zero means any time.
	Objective time.Duration
	Admission bool

	Noise   device.Noise
	Drift   []device.Change // by time
	Lengths Range           // of requests: a batch computes all its rows as if they were as long as its longest; zero means all are 1 long
	Seed    uint64          // of noise and lengths
}

// A Range is numbers between two bounds, all of them equally likely.
type Range struct{ From, To float64 }

// Traffic is requests that are made up. It is a closed loop if it has Clients:
// each sends a request, waits for the answer, thinks, and sends the next. It is
// an open loop if it has a Rate: requests come whether or not others are
// answered.
type Traffic struct {
	Model   int       // index into the models of the setting
	Clients []int     // how many there are; the setting is tried with each of these numbers
	Think   []Span    // time from an answer to the client's next request, in turn; empty means none
	Spread  float64   // of the think times: standard deviation of their logarithm, beside what a span has
	Rate    []float64 // requests a second; the setting is tried with each of these rates
	Even    bool      // requests come at equal distances, and not by chance as in a Poisson process
	Phases  []Phase   // of an open loop, one after the other and then again; empty means one that does not end
	Chance  bool      // how long a phase lasts is left to chance, with the given time as the mean
	Ramp    Ramp      // of an open loop
	Burst   Burst     // of an open loop
	Seed    uint64    // of what is left to chance

	Requests int           // how many are sent in all; 0 means any number
	Duration time.Duration // none are sent from then on; 0 means never

	Rows     []int // of the requests, in turn
	Shape    uint64
	Priority uint64
	Timeout  time.Duration // the longest time in the queue that each asks for; 0 means none
	Within   time.Duration // how long after it was sent each must be answered; 0 means any time
}

// A Phase is a time in which requests come so many times as often as the rate
// says; 0 means that none come.
type Phase struct {
	Times float64
	Lasts time.Duration
}

// A Ramp is a rate that goes up and down again, as by day and night: the rate is
// multiplied by what lies on a wave that begins with From.
type Ramp struct {
	From, To float64
	Period   time.Duration // 0 means that there is no ramp
}

// A Burst is requests that come one right after the other. The rate counts
// requests, not bursts.
type Burst struct {
	Size    int // 0 means 1
	Spacing time.Duration
}

// A Span is a length of time between two bounds, all of them equally likely.
type Span struct{ From, To time.Duration }

// Load reads a scenario from a YAML file. All that is wrong with it is said at
// once, each with its line.
func Load(file string) (*Scenario, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	return Read(file, text)
}

// Select returns the scenario with only the named settings, in the order of the
// names.
func (s *Scenario) Select(names ...string) (*Scenario, error) {
	chosen := *s
	chosen.Settings = nil
	for _, name := range names {
		i := slices.IndexFunc(s.Settings, func(set Setting) bool { return set.Name == name })
		if i < 0 {
			var known []string
			for _, set := range s.Settings {
				known = append(known, fmt.Sprintf("%q", set.Name))
			}
			return nil, fmt.Errorf("the scenario has no setting %q; it has %s", name, strings.Join(known, ", "))
		}
		chosen.Settings = append(chosen.Settings, s.Settings[i])
	}
	return &chosen, nil
}

// Run tries each setting in a world of its own.
func (s *Scenario) Run() (*Report, error) {
	varied, err := s.varied()
	if err != nil {
		return nil, err
	}
	r := &Report{Title: s.Title, Text: s.Text, Unit: s.Unit, Varied: varied}
	for _, set := range s.Settings {
		_, points := set.varied()
		for point := range points {
			run, err := s.try(set, varied, point)
			if err != nil {
				return nil, fmt.Errorf("setting %q: %w", set.Name, err)
			}
			r.Runs = append(r.Runs, run)
		}
	}
	return r, nil
}

// varied returns what settings are tried with several numbers of.
func (s *Scenario) varied() (string, error) {
	varied := ""
	for _, set := range s.Settings {
		name, _ := set.varied()
		if name != "" && varied != "" && name != varied {
			return "", errors.New("one setting has several numbers of clients, another several rates: they cannot be set side by side")
		}
		varied = cmp.Or(varied, name)
	}
	return varied, nil
}
