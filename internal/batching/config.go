package batching

import "time"

// Config configures how the requests of a model are queued and batched. The zero Config
// runs requests one by one, in the order of arrival.
type Config struct {
	// Policy decides when the requests of a lane run, and how many in one batch. Nil means
	// [None].
	Policy Policy

	// MaxRows is the maximum number of rows of a batch, and so of a request. Zero means no
	// limit.
	MaxRows int

	// Levels are the priority levels, highest first. Empty means one level without limits.
	// DefaultLevel, from 1, is the level of requests without a priority.
	Levels       []Level
	DefaultLevel int

	// Shared bounds the common queue of all levels that have no bound of their own; see
	// [Level]. The zero Bound means no limit.
	Shared Bound

	// KeepOrder delivers results in the order of arrival. Requests that are answered
	// without a result do not wait for earlier ones.
	KeepOrder bool

	// OvertakeOtherShapes lets a request of one shape overtake those of other shapes.
	// Without it a request closes every earlier batch of another shape, as in Triton.
	OvertakeOtherShapes bool

	// TakeTurns makes the core request a turn from the device before each batch.
	TakeTurns bool

	// ActiveBatches decides which batches are exclusive. Nil means that none are.
	ActiveBatches ActiveBatches

	// Predictor predicts how long batches take. With it, the core refuses requests that
	// would miss their deadline or the objective, as soon as that is clear. Nil means no
	// predictions.
	Predictor Predictor

	// Objective is the latency objective of a request. Unlike a deadline, it does not stop
	// a running request. Zero means none. It requires a Predictor.
	Objective time.Duration
}

// ActiveBatches counts the running batches of all models that share a device.
type ActiveBatches interface {
	// Begin counts a batch that begins, and reports whether it is exclusive: no other batch
	// runs on the device, and this one may use all of it until it ends, even if another
	// begins meanwhile.
	Begin() (exclusive bool)
	// End counts a batch that has ended.
	End()
}

// A Bound limits a queue. Zeros mean no limit.
type Bound struct {
	Requests int
	Bytes    int64 // of inputs; a single request may exceed it
}

// A Level is the queue policy of one priority. The zero Level has no limits.
type Level struct {
	MaxQueue          int           // maximum number of queued requests; 0 means no limit
	UseSharedBound    bool          // Config.Shared applies instead of MaxQueue
	Timeout           time.Duration // maximum time in the queue; 0 means no limit
	AllowOverride     bool          // a request may shorten Timeout, if there is one
	DelayOnTimeout    bool          // requests that time out are queued behind the others instead of being refused
	TimeoutIsDeadline bool          // the timeout of a request is a deadline, which also applies while it runs
}

// ends returns the deadline of a request that arrives now; Never if it has none.
func (l *Level) ends(it *Item, now Time) Time {
	end := Never
	if it.Deadline != 0 {
		end = it.Deadline
	}
	if l.TimeoutIsDeadline && it.Timeout > 0 && it.Timeout < Never-now {
		end = min(end, now+it.Timeout)
	}
	return end
}

// timeout returns how long it may be queued; 0 means no limit.
func (l *Level) timeout(it *Item) time.Duration {
	if l.AllowOverride && it.Timeout > 0 && it.Timeout < l.Timeout {
		return it.Timeout
	}
	return l.Timeout
}
