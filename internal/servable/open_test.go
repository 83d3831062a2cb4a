package servable

import (
	"strings"
	"testing"

	"github.com/shoal-serving/shoal/internal/engine/simulated"
	"github.com/shoal-serving/shoal/internal/leak"
	"github.com/shoal-serving/shoal/internal/modelconfig"
	"github.com/shoal-serving/shoal/internal/sched"
)

func TestMain(m *testing.M) { leak.Main(m) }

func TestInstancesThatAreNotWrittenDownAreChosen(t *testing.T) {
	device := Runner{Instances: 2, Device: sched.NewDevice(3)}
	for _, tt := range []struct {
		config    string
		runner    Runner
		automatic bool
		how       tuning
		want      int
	}{
		{"", device, false, tuning{}, 2},
		{"", device, true, tuning{}, 3},
		{"", device, true, tuning{threads: 2}, 1},
		{"", device, true, tuning{threads: 1, instances: 2}, 2},
		{"", Runner{Instances: 2}, true, tuning{}, 2},
		{"instance_group { }", device, true, tuning{}, 2},
		{"instance_group { } instance_group { }", device, false, tuning{}, 4},
		{"instance_group { count: 5 }", device, true, tuning{instances: 2}, 5},
		{"instance_group { count: 5 } instance_group { }", device, false, tuning{}, 6},
	} {
		env := NewEnv(Options{Cores: 3})
		cfg, err := modelconfig.Parse("", []byte(tt.config))
		if err != nil {
			t.Fatal(err)
		}
		cfg.Automatic = tt.automatic
		v := &Version{env: env, runner: tt.runner, Config: cfg}
		if got, left := v.instanceCount(tt.how); got != tt.want || left == strings.Contains(tt.config, "count") {
			t.Errorf("%q, automatic %t, %+v: %d instances, left to us %t, want %d", tt.config, tt.automatic, tt.how, got, left, tt.want)
		}
	}
}

func TestModelsThatNameADeviceTakeTurnsOnIt(t *testing.T) {
	env := NewEnv(Options{})
	of := func(device string) *sched.Device {
		cfg := &modelconfig.Config{Backend: simulated.Name, Parameters: map[string]string{"device": device}}
		return env.deviceOf(Runner{Engine: &simulated.Engine{}}, cfg)
	}
	if of("") != nil {
		t.Error("a model that names no device takes turns")
	}
	first, again, other := of("a"), of("a"), of("b")
	if first == nil || first != again || first == other {
		t.Errorf("devices are %p and %p for one name, %p for another", first, again, other)
	}
}
