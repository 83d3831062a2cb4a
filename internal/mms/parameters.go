package mms

import (
	"cmp"
	"time"
)

// parameters are how a model is registered, as one layer says it: a call, the
// model-config.yaml of its archive, its entry in config.properties, or the defaults. Zero
// values mean that the layer does not say.
type parameters struct {
	Workers         *scale
	BatchSize       int
	MaxBatchDelay   *time.Duration
	ResponseTimeout time.Duration // after which a worker that has not answered is ended
	StartupTimeout  time.Duration // after which one is that has not started
	ClientTimeout   time.Duration // after which a request is not answered any more
	Queue           int           // requests that may wait
}

// A scale is a number of workers: how many are started, and how many there may be.
type scale struct{ Min, Max int }

// over returns the parameters of p, completed with those of the layer below it.
func (p parameters) over(below parameters) parameters {
	return parameters{
		Workers: cmp.Or(p.Workers, below.Workers), BatchSize: cmp.Or(p.BatchSize, below.BatchSize), MaxBatchDelay: cmp.Or(p.MaxBatchDelay, below.MaxBatchDelay),
		ResponseTimeout: cmp.Or(p.ResponseTimeout, below.ResponseTimeout), StartupTimeout: cmp.Or(p.StartupTimeout, below.StartupTimeout),
		ClientTimeout: cmp.Or(p.ClientTimeout, below.ClientTimeout), Queue: cmp.Or(p.Queue, below.Queue),
	}
}

// parameters returns those that a call gives.
func (r *Registration) parameters() parameters {
	p := parameters{
		BatchSize: r.BatchSize, MaxBatchDelay: milliseconds(r.MaxBatchDelay),
		ResponseTimeout: time.Duration(r.ResponseTimeout) * time.Second, StartupTimeout: time.Duration(r.StartupTimeout) * time.Second,
	}
	if r.Workers != nil {
		p.Workers = &scale{*r.Workers, *r.Workers}
	}
	return p
}

// parameters returns those of an entry of config.properties.
func (p *Preset) parameters() parameters {
	return parameters{
		Workers: workerCounts{max(0, p.MinWorkers), max(0, p.MaxWorkers)}.scale(), BatchSize: p.BatchSize, MaxBatchDelay: milliseconds(p.MaxBatchDelay),
		ResponseTimeout: time.Duration(p.ResponseTimeout) * time.Second, StartupTimeout: time.Duration(p.StartupTimeout) * time.Second,
	}
}

// defaults returns the parameters of models of which no other layer says anything. Models
// that are registered at startup have workers, others have not.
func (s *Store) defaults(atStart bool) parameters {
	set := s.opts.Settings
	workers := set.Workers
	if atStart && workers == 0 {
		workers = max(1, s.opts.Cores)
	}
	return parameters{
		Workers: &scale{workers, workers}, BatchSize: 1, Queue: max(1, set.Queue),
		ResponseTimeout: set.ResponseTimeout, StartupTimeout: cmp.Or(set.StartupTimeout, 2*time.Minute),
	}
}

func milliseconds(n *int) *time.Duration {
	if n == nil {
		return nil
	}
	return new(time.Duration(*n) * time.Millisecond)
}

// preset returns the entry of config.properties for a version: the one with its name and
// version, or the one of its name with its archive. It is empty if there is none.
func (s *Settings) preset(name, version, archive string) Preset {
	if p, ok := s.Models[name][version]; ok {
		return p
	}
	for _, p := range s.Models[name] {
		if p.Archive == archive {
			return p
		}
	}
	return Preset{}
}

// nameOf returns the name that config.properties gives an archive; "" if it gives none.
func (s *Settings) nameOf(archive string) string {
	for name, versions := range s.Models {
		for _, p := range versions {
			if p.Archive == archive {
				return name
			}
		}
	}
	return ""
}
