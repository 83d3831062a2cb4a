package python

import (
	"encoding/json"
	"math"
	"net"

	"github.com/shoal-serving/shoal/internal/stats"
)

// A question is what a worker asks of a family of metrics, of a metric, or of another
// model.
type question struct {
	Do     string            `json:"do"` // family, metric, increment, set, observe or value; or ready
	Name   string            `json:"name"`
	Help   string            `json:"help"`
	Kind   stats.FamilyKind  `json:"kind"`
	Labels map[string]string `json:"labels"`
	Bounds []float64         `json:"buckets"`
	Value  float64           `json:"value"`

	Version string `json:"version"` // of the model
}

// answer does what a worker asks, and returns the number that it wants to know.
func (m *model) answer(q *question) (float64, error) {
	if q.Do != "ready" {
		return m.engine.metrics.answer(m, q)
	}
	if caller := m.engine.opts.Caller; caller != nil && caller.ModelReady(q.Name, q.Version) {
		return 1, nil
	}
	return 0, nil
}

// desk answers what a worker asks, until it closes the line.
func (w *worker) desk(line *net.UnixConn) {
	defer func() { _ = line.Close() }()
	message := make([]byte, frameSize+maxText+1)
	for {
		n, err := line.Read(message)
		if err != nil || n == 0 {
			return
		}
		f, err := readFrame(message[:n])
		var q question
		if err == nil {
			err = json.Unmarshal([]byte(f.text), &q)
		}
		var value float64
		if err == nil {
			value, err = w.model.answer(&q)
		}
		reply := frame{kind: kindReply, a: math.Float64bits(value)}
		if err != nil {
			reply.flags, reply.text = 1, err.Error()
		}
		if _, err := line.Write(reply.append(nil)); err != nil {
			return
		}
	}
}
