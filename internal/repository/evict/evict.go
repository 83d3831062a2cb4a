// Package evict decides which loaded models leave memory so that another one can be loaded.
// It only decides: the time is an argument, and the caller loads, unloads and measures.
//
// Keeping a model saves the time to load it again, as often as it is asked for; so a model
// is worth its rate of requests times its load time, for each byte that it holds, and the
// models that are worth least leave first. Four rules keep memory from thrashing:
//
//   - A model that is in use stays.
//   - A model stays for at least ten times its load time, so that loading takes at most an
//     eleventh of the time of the memory it happens in.
//   - A model that will probably be asked for again within ten load times stays, unless the
//     newcomer is worth clearly more.
//   - By these rules rare models would never be loaded. So a tenth of the memory, and room for
//     at least one model, is open to any newcomer.
package evict

import (
	"cmp"
	"math"
	"slices"
	"time"
)

// A Model is what the rules know of a model.
type Model struct {
	Name   string
	Bytes  int64         // memory that it holds, or will hold
	Reload time.Duration // time that it takes to load it
	Rate   float64       // requests per second, see [Rate]
	Loaded time.Time     // when it was loaded
	InUse  bool          // it has requests, or is being loaded
}

const (
	// minStay is how long a model stays at least, in load times.
	minStay = 10
	// clearly is how much more a newcomer must be worth than a busy model that it replaces.
	// Rates are estimates: with less, models of equal rates would replace each other.
	clearly = 1.5
	// leastWait is how long a newcomer waits at least for a model that is in use.
	leastWait = 10 * time.Millisecond
	// openShare is the share of the memory that is open to any newcomer.
	openShare = 0.1
)

// worth returns the seconds of loading that a byte of the model saves in a second.
func (m *Model) worth() float64 { return m.busy() / float64(max(1, m.Bytes)) }

// busy returns the expected number of requests during one load.
func (m *Model) busy() float64 { return m.Rate * m.Reload.Seconds() }

// stays returns for how much longer the model is too young to leave.
func (m *Model) stays(now time.Time) time.Duration {
	return max(0, minStay*m.Reload-now.Sub(m.Loaded))
}

// A Reason is why a newcomer is refused.
type Reason uint8

// The reasons.
const (
	Admitted Reason = iota
	TooLarge        // the newcomer needs more than the whole memory
	InUse           // too much of the memory is held by models that are in use
	Young           // another model was loaded too recently
	Busier          // another model is asked for more often
)

// A Decision is what happens for a newcomer.
type Decision struct {
	Reason Reason
	Evict  []string // models that must leave before the newcomer is loaded, worth least first

	// If the newcomer is refused:
	Blocker string        // a model that would have to leave for it
	Wait    time.Duration // until it is worth asking again
}

// Decide decides which of the loaded models leave for a newcomer, given the memory for all
// of them in bytes. It does not change loaded.
func Decide(now time.Time, memory int64, loaded []Model, newcomer Model) Decision {
	if newcomer.Bytes > memory {
		return Decision{Reason: TooLarge}
	}
	need := newcomer.Bytes - memory // to be freed, if positive
	for i := range loaded {
		need += loaded[i].Bytes
	}
	if need <= 0 {
		return Decision{}
	}
	open := isOpen(now, memory, loaded, newcomer)
	leave, stay, need := divide(now, loaded, need, newcomer, open)
	if need > 0 {
		return refusal(now, stay, newcomer, open)
	}
	return Decision{Evict: needed(leave, need)}
}

// divide returns which models leave until need bytes are free, worth least first, and which stay,
// and what is still needed then.
func divide(now time.Time, loaded []Model, need int64, newcomer Model, open bool) (leave, stay []*Model, left int64) {
	for _, m := range byWorth(loaded) {
		if need > 0 && reasonToStay(now, m, &newcomer, open) == Admitted {
			need -= m.Bytes
			leave = append(leave, m)
		} else {
			stay = append(stay, m)
		}
	}
	return leave, stay, need
}

// Excess returns which of the loaded models leave because they hold more than memory, worth least
// first. If too many are in use or too young, the others leave nevertheless.
func Excess(now time.Time, memory int64, loaded []Model) []string {
	need := -memory
	for i := range loaded {
		need += loaded[i].Bytes
	}
	leave, _, need := divide(now, loaded, need, Model{}, true)
	return needed(leave, need)
}

// needed returns the names of models that leave. need is what is still missing if all of them do; if
// it is negative, small ones may stay after all, because larger ones leave.
func needed(leave []*Model, need int64) (names []string) {
	for _, m := range leave {
		if need+m.Bytes <= 0 {
			need += m.Bytes
			continue
		}
		names = append(names, m.Name)
	}
	return names
}

// byWorth returns the models in the order in which they leave: of equal ones, the one that
// was loaded first.
func byWorth(loaded []Model) []*Model {
	type ranked struct {
		worth float64
		*Model
	}
	all := make([]ranked, len(loaded))
	for i := range loaded {
		all[i] = ranked{loaded[i].worth(), &loaded[i]}
	}
	slices.SortFunc(all, func(a, b ranked) int {
		if c := cmp.Compare(a.worth, b.worth); c != 0 {
			return c
		}
		return cmp.Or(a.Loaded.Compare(b.Loaded), cmp.Compare(a.Name, b.Name))
	})
	sorted := make([]*Model, len(all))
	for i := range all {
		sorted[i] = all[i].Model
	}
	return sorted
}

// MayOpen reports whether a model may be loaded beside others that are being loaded, given the
// memory for all models and what of it is free. While a model is loaded, it takes up to twice the
// memory that it holds afterwards: its file is read, and its weights are arranged for the machine.
// If the second half is not free for all of them, it is at most a tenth of the memory, or that of
// one model.
func MayOpen(free, memory, opening, newcomer int64) bool {
	extra := opening + newcomer
	return opening == 0 || newcomer+extra <= free || float64(extra) <= openShare*float64(memory)
}

// isOpen reports whether the newcomer fits into the part of the memory that is open to any
// newcomer. Models that are too young to leave hold that part.
func isOpen(now time.Time, memory int64, loaded []Model, newcomer Model) bool {
	young := int64(0)
	for i := range loaded {
		if loaded[i].stays(now) > 0 {
			young += loaded[i].Bytes
		}
	}
	return young == 0 || float64(young+newcomer.Bytes) <= openShare*float64(memory)
}

// reasonToStay returns why a model does not leave for the newcomer; Admitted if it does.
func reasonToStay(now time.Time, m, newcomer *Model, open bool) Reason {
	switch {
	case m.InUse:
		return InUse
	case m.stays(now) > 0:
		return Young
	case !open && m.busy()*minStay > 1 && newcomer.worth() < clearly*m.worth():
		return Busier
	}
	return Admitted
}

// refusal returns the decision for a newcomer that does not fit, given the models that stay:
// the first that could leave by waiting, and for how long.
func refusal(now time.Time, stay []*Model, newcomer Model, open bool) Decision {
	d := Decision{Wait: math.MaxInt64}
	for _, m := range stay {
		wait, reason := m.stays(now), reasonToStay(now, m, &newcomer, open)
		if reason == Admitted || reason == Busier { // a busier one leaves when memory is open again
			continue
		}
		if reason == InUse {
			wait = max(wait, m.Reload, leastWait)
		}
		if wait < d.Wait {
			d = Decision{Reason: reason, Blocker: m.Name, Wait: wait}
		}
	}
	for _, m := range stay {
		if reasonToStay(now, m, &newcomer, open) == Busier {
			d.Reason, d.Blocker = Busier, m.Name // the one that would leave first
			break
		}
	}
	return d
}

// rateMemory is how long a [Rate] remembers: the weight of a request falls to 1/e in this time.
// It is long enough to distinguish models that are asked for a few times a minute, and short
// enough to follow the hours of a day.
const rateMemory = 2 * time.Minute

// A Rate estimates the requests per second for a model, of which recent ones count more. The
// zero Rate has seen none.
type Rate struct {
	weight float64
	at     time.Time
}

// Add counts n requests at a time that is not before that of the last call.
func (r *Rate) Add(now time.Time, n float64) { r.weight, r.at = r.decayed(now)+n, now }

// PerSecond returns the estimate at a time that is not before that of the last Add.
func (r *Rate) PerSecond(now time.Time) float64 { return r.decayed(now) / rateMemory.Seconds() }

func (r *Rate) decayed(now time.Time) float64 {
	return r.weight * math.Exp(-now.Sub(r.at).Seconds()/rateMemory.Seconds())
}
