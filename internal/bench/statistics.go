package bench

import (
	"time"

	"github.com/shoal-serving/shoal/client"
)

// Statistics are a server's statistics of a model. Times are sums over requests.
type Statistics struct {
	Inferences int           `json:"inferences"` // rows
	Executions int           `json:"executions"` // batches
	Requests   int           `json:"requests"`   // successful
	Total      time.Duration `json:"total_ns"`   // from arrival to answer
	Queue      time.Duration `json:"queue_ns"`
	Input      time.Duration `json:"compute_input_ns"`
	Infer      time.Duration `json:"compute_infer_ns"`
	Output     time.Duration `json:"compute_output_ns"`
	// BatchSizes is the number of batches by rows, if the server reports it.
	BatchSizes map[int]int `json:"batch_sizes,omitempty"`
	// Closed is the number of batches by the reason for which they closed. Only Shoal
	// reports it.
	Closed map[string]int `json:"close_reasons,omitempty"`
}

// Since returns the difference to earlier statistics, after which they must not have begun again.
func (s Statistics) Since(earlier Statistics) Statistics {
	return Statistics{
		Inferences: s.Inferences - earlier.Inferences,
		Executions: s.Executions - earlier.Executions,
		Requests:   s.Requests - earlier.Requests,
		Total:      s.Total - earlier.Total,
		Queue:      s.Queue - earlier.Queue,
		Input:      s.Input - earlier.Input,
		Infer:      s.Infer - earlier.Infer,
		Output:     s.Output - earlier.Output,
		BatchSizes: since(s.BatchSizes, earlier.BatchSizes),
		Closed:     since(s.Closed, earlier.Closed),
	}
}

// restarted reports whether statistics began again after earlier ones, as when a model is reloaded.
func (s Statistics) restarted(earlier Statistics) bool {
	return s.Inferences < earlier.Inferences || s.Executions < earlier.Executions || s.Requests < earlier.Requests || s.Total < earlier.Total
}

// since returns the counts that have increased, and by how much.
func since[K comparable](now, before map[K]int) map[K]int {
	more := map[K]int{}
	for k, n := range now {
		if n > before[k] {
			more[k] = n - before[k]
		}
	}
	return more
}

// BatchRows returns the mean number of rows of a batch.
func (s Statistics) BatchRows() float64 {
	batches, rows := 0, 0
	for size, n := range s.BatchSizes {
		batches, rows = batches+n, rows+n*size
	}
	return float64(rows) / float64(max(1, batches))
}

// Each returns the mean times of a request.
func (s Statistics) Each() Parts {
	n := time.Duration(max(1, s.Requests))
	p := Parts{Total: s.Total / n, Queue: s.Queue / n, Input: s.Input / n, Infer: s.Infer / n, Output: s.Output / n}
	// The times of failed requests could make it negative.
	p.Overhead = max(0, p.Total-p.Queue-p.Input-p.Infer-p.Output)
	return p
}

// Parts are the mean times of a request in the server.
type Parts struct {
	Total    time.Duration `json:"total_ns"`
	Overhead time.Duration `json:"overhead_ns"` // total minus the other parts
	Queue    time.Duration `json:"queue_ns"`
	Input    time.Duration `json:"compute_input_ns"`
	Infer    time.Duration `json:"compute_infer_ns"`
	Output   time.Duration `json:"compute_output_ns"`
}

// statisticsOf adds up the versions of a model.
func statisticsOf(versions []client.Statistics) Statistics {
	sum := Statistics{BatchSizes: map[int]int{}, Closed: map[string]int{}}
	for _, v := range versions {
		sum.Inferences += int(v.Inferences)
		sum.Executions += int(v.Executions)
		sum.Requests += int(v.Success.Count)
		sum.Total += v.Success.Time
		sum.Queue += v.Queue.Time
		sum.Input += v.ComputeInput.Time
		sum.Infer += v.ComputeInfer.Time
		sum.Output += v.ComputeOutput.Time
		for _, b := range v.Batches {
			sum.BatchSizes[int(b.Size)] += int(b.ComputeInfer.Count)
		}
		for why, n := range v.Closed {
			sum.Closed[why] += int(n)
		}
	}
	return sum
}
