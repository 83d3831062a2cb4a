package bench

import (
	"time"

	"github.com/shoal-serving/shoal/client"
)

// Statistics are what a server counts of a model. Times are sums over requests.
type Statistics struct {
	Inferences int           `json:"inferences"` // rows
	Executions int           `json:"executions"` // batches
	Requests   int           `json:"requests"`   // that succeeded
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

// Since returns what was counted after earlier.
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

// since returns what is more than before. What is not is left out.
func since[K comparable](now, before map[K]int) map[K]int {
	more := map[K]int{}
	for k, n := range now {
		if n > before[k] {
			more[k] = n - before[k]
		}
	}
	return more
}

// BatchRows returns how many rows a batch had on average.
func (s Statistics) BatchRows() float64 {
	batches, rows := 0, 0
	for size, n := range s.BatchSizes {
		batches, rows = batches+n, rows+n*size
	}
	return float64(rows) / float64(max(1, batches))
}

// Each returns the averages of a request.
func (s Statistics) Each() Parts {
	n := time.Duration(max(1, s.Requests))
	p := Parts{Total: s.Total / n, Queue: s.Queue / n, Input: s.Input / n, Infer: s.Infer / n, Output: s.Output / n}
	// Below zero it would be if requests that failed have waited and computed.
	p.Overhead = max(0, p.Total-p.Queue-p.Input-p.Infer-p.Output)
	return p
}

// Parts say where the time of a request went in the server, on average.
type Parts struct {
	Total    time.Duration `json:"total_ns"`
	Overhead time.Duration `json:"overhead_ns"` // what is left of the total
	Queue    time.Duration `json:"queue_ns"`
	Input    time.Duration `json:"compute_input_ns"`
	Infer    time.Duration `json:"compute_infer_ns"`
	Output   time.Duration `json:"compute_output_ns"`
}

// statisticsOf sums the versions of a model up.
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
