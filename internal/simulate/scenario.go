package simulate

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/shoal-serving/shoal/internal/batching"
	"github.com/shoal-serving/shoal/internal/device"
)

// A Scenario is the input of a simulation: requests, and the settings to run them with.
// Package scenario reads one from a file; docs/reference/simulate.md describes the format.
type Scenario struct {
	Title    string
	Text     string // description for the reader
	Unit     Unit   // unit in which times are shown
	Arrivals []Arrival
	Recorded []Arrival // requests of a recording, sorted by time, without ids
	Settings []Setting
}

// A Unit is a named length of time, such as the X of a drawing in which every batch takes
// X. The zero Unit has no name: times are then formatted as durations.
type Unit struct {
	Name   string        `json:"name"`
	Length time.Duration `json:"length_ns"`
}

// An Arrival is one request with a fixed time of arrival.
type Arrival struct {
	At       batching.Time
	ID       string
	Model    int // index into the models of each setting
	Rows     int
	Shape    uint64
	Priority uint64
	Timeout  time.Duration // requested maximum time in the queue; 0 means none
	Deadline batching.Time // when it must be answered; 0 means none
	CancelAt batching.Time // when its client cancels it; 0 means never
}

// A Setting is one way to serve the requests. It is self-contained.
type Setting struct {
	Name     string
	Slowdown []float64 // of the device, as in [device.Device]
	Slots    int       // batches that may run in parallel, for which the models take turns; 0 means no limit, and no turns
	Models   []ModelSetting
	Traffic  []Traffic
}

// A ModelSetting is one model and how it is served.
type ModelSetting struct {
	Name      string
	Config    batching.Config
	Curve     device.Curve
	Instances int // at least 1

	// PerElement is the time that each element of a batch takes in addition to Curve, for
	// traffic with Elements. Rows of a padded batch have as many elements as the longest.
	PerElement time.Duration

	// Automatic replaces the policy of Config by a new automatic policy for each run.
	// Calibrated gives that policy the exact profile of the model.
	Automatic, Calibrated bool

	// Objective is the latency objective of requests. With Admission, each run learns how
	// long batches take, and refuses requests that would miss the objective or their
	// deadline. Zero means none.
	Objective time.Duration
	Admission bool

	Noise   device.Noise
	Drift   []device.Change // sorted by time
	Lengths Range           // lengths of requests: all rows of a batch are padded to the longest; zero means that all have length 1
	Seed    uint64          // random seed of noise and lengths
}

// A Range is a uniform distribution between two bounds.
type Range struct{ From, To float64 }

// Traffic is generated requests. With Clients it is a closed loop: each client sends a
// request, waits for the answer, thinks, and sends the next. With a Rate it is an open
// loop: requests arrive independently of answers.
type Traffic struct {
	Model   int       // index into the setting's models
	Clients []int     // numbers of clients; the setting runs once with each
	Think   []Span    // times from an answer to the client's next request, used in turn; empty means none
	Spread  float64   // standard deviation of the logarithm of think times, in addition to the spans
	Rate    []float64 // requests per second; the setting runs once with each
	Even    bool      // requests arrive at equal intervals instead of as a Poisson process
	Phases  []Phase   // of an open loop, repeated in order; empty means a single endless phase
	Chance  bool      // the length of a phase is random, with the given time as the mean
	Ramp    Ramp      // of an open loop
	Burst   Burst     // of an open loop
	Seed    uint64    // of all random choices

	Requests int           // total number of requests; 0 means no limit
	Duration time.Duration // no requests are sent after it; 0 means no limit

	Rows     []int // rows of the requests, used in turn
	Shape    uint64
	Elements int64  // of a row
	PadGroup uint64 // requests of a group may be padded to share a batch; 0 means none
	Priority uint64
	Timeout  time.Duration // requested maximum time in the queue; 0 means none
	Within   time.Duration // deadline of each request after it was sent; 0 means none
}

// A Phase is a time during which the rate is multiplied by a factor; 0 means no requests.
type Phase struct {
	Times float64
	Lasts time.Duration
}

// A Ramp is a rate that rises and falls periodically, as by day and night: the rate is
// multiplied by a wave that begins with From.
type Ramp struct {
	From, To float64
	Period   time.Duration // 0 means no ramp
}

// A Burst is a group of requests that arrive shortly after each other. The rate counts
// requests, not bursts.
type Burst struct {
	Size    int // 0 means 1
	Spacing time.Duration
}

// A Span is a uniform distribution of durations between two bounds.
type Span struct{ From, To time.Duration }

// Select returns the scenario with only the named settings, in the order of the names.
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

// Run runs each setting in a separate world.
func (s *Scenario) Run() (*Report, error) {
	varied, err := s.varied()
	if err != nil {
		return nil, err
	}
	r := &Report{Title: s.Title, Text: s.Text, Unit: s.Unit, Varied: varied}
	for _, set := range s.Settings {
		_, points := set.varied()
		for point := range points {
			run, err := s.runPoint(set, varied, point)
			if err != nil {
				return nil, fmt.Errorf("setting %q: %w", set.Name, err)
			}
			r.Runs = append(r.Runs, run)
		}
	}
	return r, nil
}

// varied returns the parameter that settings vary: clients or rate.
func (s *Scenario) varied() (string, error) {
	varied := ""
	for _, set := range s.Settings {
		name, _ := set.varied()
		if name != "" && varied != "" && name != varied {
			return "", errors.New("one setting lists several values of clients, another of rate: a scenario can vary only one of them")
		}
		varied = cmp.Or(varied, name)
	}
	return varied, nil
}
