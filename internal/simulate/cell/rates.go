package cell

import (
	"time"

	"github.com/shoal-serving/shoal/internal/stats"
)

// lookEvery is how often nodes look whether a rate has risen. They report that at once, and again
// with the next look.
const lookEvery = time.Second

// A meter measures the rate of a model, all nodes together.
type meter struct {
	began  Time    // of the window
	asked  uint32  // rows of first tries that reached nodes in it
	looked uint32  // of these, until the last look
	rate   float64 // as last reported, without its error
	rising int     // reports of a rise that are due
}

// look reports whether the rate has risen, or had with the look before. Then the window begins at
// the last look before the rise.
func (m *meter) look(now Time) bool {
	if n := m.asked - m.looked; stats.Rose(m.rate, float64(n), lookEvery) {
		m.began, m.asked, m.rising = now-lookEvery, n, 2
	}
	m.looked = m.asked
	if m.rising == 0 {
		return false
	}
	m.rising--
	m.rate = float64(m.asked) / (now - m.began).Seconds()
	return true
}

// report ends the window.
func (m *meter) report(now Time) float64 {
	*m = meter{began: now, rate: float64(m.asked) / (now - m.began).Seconds()}
	return m.rate
}

// takeReports updates the rates that placement knows.
func (c *cell) takeReports() {
	k := &c.control
	rates := make([]float64, len(c.meters))
	for m := range c.meters {
		rates[m] = c.meters[m].report(c.now)
	}
	if k.silent {
		return
	}
	if k.late = append(k.late, rates); len(k.late) <= c.cfg.ReportDelay {
		return
	}
	for m := range k.models {
		c.setRate(m, k.late[0][m])
	}
	k.late = k.late[1:]
}

// takeRises updates the rates that have risen, and reports whether there are any.
func (c *cell) takeRises() (rose bool) {
	for m := range c.meters {
		if c.meters[m].look(c.now) && !c.control.silent {
			c.setRate(m, c.meters[m].rate)
			rose = true
		}
	}
	return rose
}

func (c *cell) setRate(m int, rate float64) {
	k := &c.control.models[m]
	k.Rate, k.Reported, k.Asked = rate*c.control.errors[m], c.now, k.Asked || rate > 0
}
