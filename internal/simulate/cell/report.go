package cell

import (
	"encoding/json"
	"io"
)

// A Report is what came of a cell file: one result for each balancer.
type Report struct {
	Title       string    `json:"title"`
	Text        string    `json:"text,omitempty"`
	NodesNeeded int       `json:"nodes_needed,omitempty"` // the smallest cell that suffices, if it was searched
	Results     []*Result `json:"results"`
}

// WriteJSON writes the report as JSON. Times are in nanoseconds.
func (r *Report) WriteJSON(w io.Writer) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	return enc.Encode(r)
}

// A Study is a cell file: what to run.
type Study struct {
	Title, Text string
	Cell        Config
	Balancers   []Balancer // to compare
	Zones       int
	Memory      int64 // of each node
}

// Run runs the cell with each balancer.
func (s *Study) Run() (*Report, error) {
	r := &Report{Title: s.Title, Text: s.Text}
	for _, b := range s.Balancers {
		cfg := s.Cell
		cfg.Balancer = b
		result, err := Run(cfg)
		if err != nil {
			return nil, err
		}
		r.Results = append(r.Results, result)
	}
	return r, nil
}

// RunSmallest runs the smallest cell that suffices while a zone is lost; see [Smallest].
func (s *Study) RunSmallest(each func(nodes int, r *Result)) (*Report, error) {
	cfg := s.Cell
	cfg.Balancer = s.Balancers[0]
	n, result, err := Smallest(cfg, func(n int) []Node { return Nodes(n, s.Zones, s.Memory) }, each)
	if err != nil {
		return nil, err
	}
	return &Report{Title: s.Title, Text: s.Text, NodesNeeded: n, Results: []*Result{result}}, nil
}
