package python

import (
	"context"
	"encoding/json"
	"math"
	"net"

	"github.com/shoal-serving/shoal/internal/stats"
)

// A workerCall is an operation on a metric or a metric family, or a query whether another
// model is ready.
type workerCall struct {
	Do     string            `json:"do"` // family, metric, increment, set, observe, value or ready
	Name   string            `json:"name"`
	Help   string            `json:"help"`
	Kind   stats.FamilyKind  `json:"kind"`
	Labels map[string]string `json:"labels"`
	Bounds []float64         `json:"buckets"`
	Value  float64           `json:"value"`

	Version string `json:"version"` // of the model
}

// answerWorker carries out a workerCall and returns its result.
func (m *model) answerWorker(call *workerCall) (float64, error) {
	if call.Do != "ready" {
		return m.engine.metrics.answer(m, call)
	}
	if caller := m.engine.opts.Caller; caller != nil && caller.ModelReady(call.Name, call.Version) {
		return 1, nil
	}
	return 0, nil
}

// serveWorkerCalls answers a worker's calls until the worker closes the connection or exits.
func (w *worker) serveWorkerCalls(conn *net.UnixConn) {
	defer func() { _ = conn.Close() }()
	// A child process that left the process group may still hold the other end open.
	stop := context.AfterFunc(w.ctx, func() { _ = conn.Close() })
	defer stop()
	message := make([]byte, frameSize+maxText+1)
	for {
		n, err := conn.Read(message)
		if err != nil || n == 0 {
			return
		}
		f, err := readFrame(message[:n])
		var call workerCall
		if err == nil {
			err = json.Unmarshal([]byte(f.text), &call)
		}
		var value float64
		if err == nil {
			value, err = w.model.answerWorker(&call)
		}
		reply := frame{kind: kindReply, a: math.Float64bits(value)}
		if err != nil {
			reply.flags, reply.text = 1, err.Error()
		}
		if _, err := conn.Write(reply.append(nil)); err != nil {
			return
		}
	}
}
