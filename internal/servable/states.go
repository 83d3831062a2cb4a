package servable

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/shoal-serving/shoal/internal/infer"
	"github.com/shoal-serving/shoal/internal/modelconfig"
)

// readInitialStates reads the files that sequences begin with.
func readInitialStates(cfg *modelconfig.Config, dir string) error {
	if cfg.Sequence == nil {
		return nil
	}
	for i := range cfg.Sequence.States {
		s := &cfg.Sequence.States[i]
		if s.File == "" {
			continue
		}
		file := filepath.Join(dir, "initial_state", s.File)
		data, err := os.ReadFile(file)
		if err != nil {
			return infer.Errorf(infer.NotFound, "the first value of state %q cannot be read: %w", s.Input, err)
		}
		if len(data) != len(s.Initial) {
			return cfg.Wrong(fmt.Sprintf("sequence_batching.state[%d].initial_state[0].data_file", i), fmt.Sprintf("%d bytes in %s", len(data), file), "%d, as the state has", len(s.Initial))
		}
		s.Initial = data
	}
	return nil
}
