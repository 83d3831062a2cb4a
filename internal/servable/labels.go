package servable

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/shoal-serving/shoal/internal/modelconfig"
)

// ReadLabels reads the label files of the outputs from the model's directory. Line 1 is the
// name of class 0.
func ReadLabels(cfg *modelconfig.Config, dir string) (map[string][]string, error) {
	labels := map[string][]string{}
	for i, out := range cfg.Proto.GetOutput() {
		file := out.GetLabelFilename()
		if file == "" {
			continue
		}
		text, err := os.ReadFile(filepath.Join(dir, file))
		if err != nil {
			return nil, cfg.Wrong(fmt.Sprintf("output[%d].label_filename", i), fmt.Sprintf("%q", file), "a file in the model's directory with the name of a class in each line (%v)", err)
		}
		for line := range strings.Lines(string(text)) {
			labels[out.GetName()] = append(labels[out.GetName()], strings.TrimRight(line, "\r\n"))
		}
	}
	return labels, nil
}
