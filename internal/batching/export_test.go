package batching

// Observe calls f with each step of the core behind s.
func (s *Sequences) Observe(f func(Time, Event, *Actions)) { s.observe = f }

// CoreWaiting returns the number of requests that the core behind s has.
func (s *Sequences) CoreWaiting() int { return s.core.Waiting() }
