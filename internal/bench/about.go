package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/shoal-serving/shoal/client"
	"github.com/shoal-serving/shoal/tensor"
)

// about asks a server about a model, over either protocol. Requests to the model do not
// go through it: see the comment of the package.
type about struct {
	client        *client.Client
	name, version string
}

// Model implements [Caller].
func (a *about) Model(ctx context.Context) (Model, error) {
	meta, err := a.client.Metadata(ctx, a.name, a.version)
	if err != nil {
		return Model{}, err
	}
	m := Model{Name: meta.Name, MaxBatch: -1}
	for _, in := range meta.Inputs {
		if in.Type == tensor.Invalid {
			return Model{}, fmt.Errorf("input %q of model %q has a type that KServe v2 does not define", in.Name, m.Name)
		}
		m.Inputs = append(m.Inputs, Input{Name: in.Name, Type: in.Type, Shape: in.Shape})
	}
	if len(m.Inputs) == 0 {
		return Model{}, fmt.Errorf("model %q has no inputs, as its metadata says", m.Name)
	}
	text, err := a.client.Config(ctx, a.name, a.version)
	if errors.Is(err, client.NotFound) || errors.Is(err, client.Unsupported) {
		return m, nil // an extension that not all servers have
	}
	var config struct {
		MaxBatchSize     int             `json:"max_batch_size"`
		SequenceBatching json.RawMessage `json:"sequence_batching"`
	}
	if err == nil {
		err = json.Unmarshal(text, &config)
	}
	m.MaxBatch, m.HasSequences = config.MaxBatchSize, len(config.SequenceBatching) > 0 && string(config.SequenceBatching) != "null"
	return m, err
}

// Statistics implements [Caller].
func (a *about) Statistics(ctx context.Context) (Statistics, error) {
	versions, err := a.client.Statistics(ctx, a.name, a.version)
	return statisticsOf(versions), err
}
