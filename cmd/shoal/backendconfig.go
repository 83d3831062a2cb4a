package main

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"

	"github.com/shoal-serving/shoal/internal/engine/onnx"
	"github.com/shoal-serving/shoal/internal/engine/python"
	"github.com/shoal-serving/shoal/internal/modelconfig"
)

const backendFlag = "backend-config"

// A backendSetting is one value of --backend-config: BACKEND,KEY=VALUE, or KEY=VALUE for all
// backends.
type backendSetting struct{ text, backend, key, value string }

// batchSizeKey is the max_batch_size of models whose configuration leaves it to the model.
const batchSizeKey = "default-max-batch-size"

// parameterKeys are settings of backends that are parameters of their models, too.
var parameterKeys = map[string][]string{onnx.Name: {"intra_op_thread_count", "inter_op_thread_count"}}

// parseBackendSettings reads the values of --backend-config.
func parseBackendSettings(texts []string) (all []backendSetting, err error) {
	var errs []error
	for _, text := range texts {
		backend, rest, found := strings.Cut(text, ",")
		if !found {
			backend, rest = "", text
		}
		key, value, found := strings.Cut(rest, "=")
		s := backendSetting{text, backend, key, value}
		if !found || key == "" {
			errs = append(errs, fmt.Errorf("--%s: %q is not valid: expected BACKEND,KEY=VALUE, such as onnxruntime,%s=8", backendFlag, text, batchSizeKey))
			continue
		}
		errs = append(errs, s.check())
		all = append(all, s)
	}
	return all, errors.Join(errs...)
}

// check returns an error for a setting that is carried out, and has a value that is not
// valid.
func (s backendSetting) check() error {
	if s.ignored() != "" {
		return nil
	}
	low := 0
	if s.key == batchSizeKey {
		low = 1
	}
	if n, err := strconv.ParseInt(s.value, 10, 32); err != nil || int(n) < low {
		return fmt.Errorf("--%s: %q is not valid: expected a whole number of at least %d", backendFlag, s.text, low)
	}
	return nil
}

// ignored returns why a setting has no effect; "" if it has one.
func (s backendSetting) ignored() string {
	switch {
	case s.key == batchSizeKey && (s.backend == "" || s.backend == onnx.Name), slices.Contains(parameterKeys[s.backend], s.key):
		return ""
	case s.backend == "":
		return "it is not a setting of all backends"
	case s.backend == python.Name && strings.HasPrefix(s.key, "shm"):
		return "memory that is shared with Python models grows on demand"
	case s.backend == python.Name && s.key == "stub-timeout-seconds":
		return "--model-load-timeout-secs limits how long a Python model takes to start"
	case s.backend == onnx.Name && s.key == "enable-global-threadpool":
		return "ONNX models share the cores anyway; see docs/explanation/automatic-tuning.md"
	case s.backend == onnx.Name || s.backend == python.Name || s.backend == python.TorchName:
		return fmt.Sprintf("backend %s has no such setting; docs/reference/configuration.md lists the parameters of its models", s.backend)
	}
	return fmt.Sprintf("there is no backend %s", s.backend)
}

// backendDefaults returns what settings mean for models, by backend. A setting of a backend
// takes precedence over one of all backends, and a later one over an earlier one.
func backendDefaults(all []backendSetting) map[string]modelconfig.Defaults {
	common := 0
	defaults := map[string]modelconfig.Defaults{}
	for _, s := range all {
		n, _ := strconv.Atoi(s.value) // check has tried
		d := defaults[s.backend]
		switch {
		case s.ignored() != "":
			continue
		case s.key == batchSizeKey && s.backend == "":
			common = n
			continue
		case s.key == batchSizeKey:
			d.MaxBatch = n
		default:
			if d.Parameters == nil {
				d.Parameters = map[string]string{}
			}
			d.Parameters[s.key] = s.value
		}
		defaults[s.backend] = d
	}
	if d := defaults[onnx.Name]; common > 0 && d.MaxBatch == 0 {
		d.MaxBatch = common
		defaults[onnx.Name] = d
	}
	return defaults
}

// logIgnored warns of settings that have no effect.
func logIgnored(all []backendSetting, log *slog.Logger) {
	for _, s := range all {
		if why := s.ignored(); why != "" {
			log.Warn("setting has no effect", "name", backendFlag, "value", s.text, "reason", why)
		}
	}
}
