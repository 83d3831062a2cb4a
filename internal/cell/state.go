package cell

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/shoal-serving/shoal/internal/device"
	"github.com/shoal-serving/shoal/internal/placement"
)

// A State is what a cell keeps on disk, and what a follower copies.
type State struct {
	Epoch    uint64             `json:"epoch"`
	Version  uint64             `json:"version"` // of the plan; it rises when a copy moves
	Plan     *placement.Plan    `json:"plan"`
	Learned  map[string]Learned `json:"learned"` // by model
	Rollouts []Rollout          `json:"rollouts,omitempty"`
}

// Learned is what nodes have reported about a model. It outlives the model's copies.
type Learned struct {
	Asked     bool          `json:"asked,omitempty"` // a client has asked for it
	Bytes     int64         `json:"bytes,omitempty"`
	Digest    string        `json:"digest,omitempty"`
	Objective time.Duration `json:"objective_ns,omitempty"`
	Efficient int           `json:"efficient_rows,omitempty"`
	Curve     device.Curve  `json:"curve"`
}

// stateFormat is the version of the file's format.
const stateFormat = 1

// Encode returns the state as a file.
func (s *State) Encode() ([]byte, error) {
	body, err := json.Marshal(s)
	if err != nil {
		return nil, err
	}
	// Not by Marshal, which would read the whole body again.
	return fmt.Appendf(nil, `{"format":%d,"sha256":"%x","state":%s}`, stateFormat, sha256.Sum256(body), body), nil
}

// DecodeState reads a file that [State.Encode] wrote.
func DecodeState(text []byte) (*State, error) {
	var f struct {
		Format   int             `json:"format"`
		Checksum string          `json:"sha256"` // of State
		State    json.RawMessage `json:"state"`
	}
	if err := json.Unmarshal(text, &f); err != nil {
		return nil, err
	}
	if f.Format != stateFormat {
		return nil, fmt.Errorf("the state has format %d, and this program reads format %d", f.Format, stateFormat)
	}
	if fmt.Sprintf("%x", sha256.Sum256(f.State)) != f.Checksum {
		return nil, errors.New("the checksum of the state is wrong: the file is damaged")
	}
	s := &State{}
	return s, json.Unmarshal(f.State, s)
}
