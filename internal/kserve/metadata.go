package kserve

import (
	"encoding/json"

	"github.com/shoal-serving/shoal/internal/catalog"
)

type tensorMetadata struct {
	Name     string  `json:"name"`
	Datatype string  `json:"datatype"`
	Shape    []int64 `json:"shape"`
}

// MetadataJSON returns the metadata of a model as JSON.
func MetadataJSON(m *catalog.Metadata) ([]byte, error) {
	return json.Marshal(struct {
		Name     string           `json:"name"`
		Versions []string         `json:"versions"`
		Platform string           `json:"platform"`
		Inputs   []tensorMetadata `json:"inputs"`
		Outputs  []tensorMetadata `json:"outputs"`
	}{m.Name, m.Versions, m.Platform, describe(m.Inputs), describe(m.Outputs)})
}

func describe(tensors []catalog.Tensor) []tensorMetadata {
	var described []tensorMetadata
	for _, t := range tensors {
		described = append(described, tensorMetadata{t.Name, t.Type.String(), t.Shape})
	}
	return described
}
