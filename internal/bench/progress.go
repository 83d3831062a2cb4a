package bench

import (
	"fmt"
	"sync"
	"time"
)

// Progress is the state of the current window of a load.
type Progress struct {
	Load            string // such as "Concurrency: 4"
	Window, Windows int    // number of the window, from 1, and the maximum
	Waiting         int    // requests in flight
	Rate            float64
	P50, P99        time.Duration
}

// String formats the progress as one line.
func (p Progress) String() string {
	return fmt.Sprintf("%s, window %d of %d: %.0f/s, p50 %d usec, p99 %d usec, %d waiting",
		p.Load, p.Window, p.Windows, p.Rate, p.P50.Microseconds(), p.P99.Microseconds(), p.Waiting)
}

// withProgress runs f, and reports progress every second.
func (m *measurement) withProgress(f func()) {
	if m.Progress == nil {
		f()
		return
	}
	done := make(chan struct{})
	var telling sync.WaitGroup
	telling.Go(func() {
		tick := time.NewTicker(time.Second)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				m.Progress(m.progress(time.Now()))
			case <-done:
				return
			}
		}
	})
	f()
	close(done)
	telling.Wait()
}

func (m *measurement) progress(now time.Time) Progress {
	p := Progress{
		Load:   m.load.String(),
		Window: int(m.window.Load()) + 1, Windows: m.trials(m.load),
	}
	var open []*Window
	for _, d := range m.drivers {
		p.Waiting += int(d.waiting.Load())
		open = append(open, d.soFar(now))
	}
	all := merge(open)
	all.Took = open[0].Took // the same for all targets
	p.Rate, p.P50, p.P99 = all.Rate(), all.Latency(50), all.Latency(99)
	return p
}
