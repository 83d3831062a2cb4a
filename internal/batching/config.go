package batching

import "time"

// Config says how a model's requests are queued and combined. The zero Config
// runs each request alone, in the order of arrival.
type Config struct {
	// Policy decides when a lane's requests run, and how many together. Nil
	// means [None].
	Policy Policy

	// MaxRows is the most rows that a batch, and so a request, may have. Zero
	// means no limit.
	MaxRows int

	// Levels are the priority levels, the highest first. Empty means one level
	// without limits. DefaultLevel, from 1, is that of requests which name none.
	Levels       []Level
	DefaultLevel int

	// Shared bounds the queue of all levels together that have no bound of their
	// own; see [Level]. The zero Bound is none.
	Shared Bound

	// KeepOrder delivers outcomes in the order of arrival. Requests that are
	// turned away do not wait for their turn.
	KeepOrder bool

	// LanesApart lets a request of one shape overtake those of another. Without
	// it a request closes the batch of every other shape before it, as in Triton.
	LanesApart bool

	// TakeTurns makes the model ask the device for a turn before each batch.
	TakeTurns bool

	// Active decides which batches are exclusive. Nil means that none are.
	Active Active

	// Predictor says how long batches take. With it, requests that would be answered
	// after their deadline, or later than the objective, are turned away as soon as
	// that is clear. Nil means that nothing is predicted.
	Predictor Predictor

	// Objective is how long after its arrival a request should be answered. Unlike a
	// deadline it does not end what runs. Zero means any time; it needs a Predictor.
	Objective time.Duration
}

// Active counts the batches that run on a device, of all models that share it.
type Active interface {
	// Begin counts a batch that begins, and reports whether it is exclusive: it has the
	// device to itself, and may use all of it until it ends.
	Begin() (exclusive bool)
	// End counts a batch that has ended.
	End()
}

// A Bound is how much may wait. Zeros mean any number.
type Bound struct {
	Requests int
	Bytes    int64 // of inputs; one request may wait however large it is
}

// A Level is the queue policy of one priority. The zero Level has no limits.
type Level struct {
	MaxQueue      int           // requests that may wait; 0 means any number
	Shares        bool          // the bound that counts is Config.Shared instead
	Timeout       time.Duration // longest time in the queue; 0 means any
	AllowOverride bool          // a request may ask for a shorter timeout, if there is one to shorten
	DelayLate     bool          // those that time out stand behind the others instead of being turned away
	Ends          bool          // the timeout that a request asks for is a deadline, which ends it also while it runs
}

// ends returns when a request that arrives now has to be answered, whatever
// happens.
func (l *Level) ends(it *Item, now Time) Time {
	end := Never
	if it.Deadline != 0 {
		end = it.Deadline
	}
	if l.Ends && it.Timeout > 0 && it.Timeout < Never-now {
		end = min(end, now+it.Timeout)
	}
	return end
}

// timeout returns how long it may wait in the queue; 0 means any time.
func (l *Level) timeout(it *Item) time.Duration {
	if l.AllowOverride && it.Timeout > 0 && it.Timeout < l.Timeout {
		return it.Timeout
	}
	return l.Timeout
}
