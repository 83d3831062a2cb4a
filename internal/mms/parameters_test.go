package mms

import (
	"testing"
	"time"
)

func TestACallOverrulesTheArchiveWhichOverrulesConfigProperties(t *testing.T) {
	two, five := 2, 5
	call := (&Registration{BatchSize: 8, Workers: &five}).parameters()
	archive := parameters{BatchSize: 16, MaxBatchDelay: new(20 * time.Millisecond), Workers: &scale{2, 4}, ResponseTimeout: 7 * time.Second, Queue: 9}
	properties := (&Preset{BatchSize: 32, MaxBatchDelay: &two, MinWorkers: 3, ResponseTimeout: 8, StartupTimeout: 30}).parameters()
	s := Store{opts: Options{Settings: NewSettings(), Cores: 6}}
	for _, tt := range []struct {
		name                string
		layers              []parameters
		workers             scale
		batch               int
		delay               time.Duration // -1 means none
		response, startup   time.Duration
		queue               int
		registeredAtStartup bool
	}{
		{"the defaults", nil, scale{0, 0}, 1, -1, 120 * time.Second, 2 * time.Minute, 100, false},
		{"the defaults at startup", nil, scale{6, 6}, 1, -1, 120 * time.Second, 2 * time.Minute, 100, true},
		{"config.properties", []parameters{properties}, scale{3, 3}, 32, 2 * time.Millisecond, 8 * time.Second, 30 * time.Second, 100, false},
		{"the archive", []parameters{archive, properties}, scale{2, 4}, 16, 20 * time.Millisecond, 7 * time.Second, 30 * time.Second, 9, false},
		{"a call", []parameters{call, archive, properties}, scale{5, 5}, 8, 20 * time.Millisecond, 7 * time.Second, 30 * time.Second, 9, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var p parameters
			for _, layer := range tt.layers {
				p = p.over(layer)
			}
			p = p.over(s.defaults(tt.registeredAtStartup))
			delay := time.Duration(-1)
			if p.MaxBatchDelay != nil {
				delay = *p.MaxBatchDelay
			}
			if *p.Workers != tt.workers || p.BatchSize != tt.batch || delay != tt.delay || p.ResponseTimeout != tt.response || p.StartupTimeout != tt.startup || p.Queue != tt.queue {
				t.Errorf("found workers %v and %+v with delay %v", *p.Workers, p, delay)
			}
		})
	}
}

func TestACallForNoWorkersOverrulesTheArchive(t *testing.T) {
	none := 0
	p := (&Registration{Workers: &none}).parameters().over(parameters{Workers: &scale{2, 2}})
	if *p.Workers != (scale{}) {
		t.Errorf("found %v workers", *p.Workers)
	}
}

func TestAnEntryOfConfigPropertiesIsFoundByVersionOrArchive(t *testing.T) {
	s := NewSettings()
	text := `models={"m": {"1.0": {"marName": "m.mar", "batchSize": 2}, "2.0": {"marName": "m2.mar", "batchSize": 3}}}`
	if err := s.Parse("config.properties", text, nil); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name, version, archive string
		want                   int
	}{
		{"m", "1.0", "other.mar", 2},
		{"m", "2.0", "m2.mar", 3},
		{"m", "7", "m2.mar", 3},
		{"m", "7", "other.mar", 0},
		{"other", "1.0", "m.mar", 0},
	} {
		if p := s.preset(tt.name, tt.version, tt.archive); p.BatchSize != tt.want {
			t.Errorf("%+v: found %+v", tt, p)
		}
	}
	if s.nameOf("m2.mar") != "m" || s.nameOf("other.mar") != "" {
		t.Errorf("the names of archives are %q and %q", s.nameOf("m2.mar"), s.nameOf("other.mar"))
	}
}
