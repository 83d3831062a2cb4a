package server

import (
	"time"

	"github.com/shoal-serving/shoal/internal/infer"
	"github.com/shoal-serving/shoal/internal/repository"
	"github.com/shoal-serving/shoal/internal/stats"
)

// Figures are what is known of a loaded version in numbers.
type Figures struct {
	Model    string
	Version  int64
	Counted  stats.Snapshot
	Waiting  int           // requests in the queue now
	LoadTook time.Duration // warming up included
	Memory   int64         // bytes that the model holds; 0 means unknown
}

// Figures returns those of every loaded version, by name and number.
func (s *Server) Figures() []Figures {
	var all []Figures
	s.models.All(func(name string, v *repository.Version) {
		all = append(all, Figures{
			Model: name, Version: v.Number,
			Counted: v.Stats.Snapshot(), Waiting: v.Scheduler.Waiting(), LoadTook: v.Took, Memory: v.Memory,
		})
	})
	return all
}

// Strays returns how many requests asked for a model that is not there, by what they
// were told.
func (s *Server) Strays() (byCode [infer.Codes]uint64) {
	for code := range byCode {
		byCode[code] = s.strays[code].Load()
	}
	return byCode
}
