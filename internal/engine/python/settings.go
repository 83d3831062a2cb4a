package python

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/shoal-serving/shoal/internal/engine"
	"github.com/shoal-serving/shoal/internal/modelconfig"
)

// settings are what a configuration asks of the workers.
type settings struct {
	interpreter string
	limit       time.Duration // of one batch; 0 means none
	memory      int64         // bytes that a worker may have; 0 means any number
	apart, died bool          // see [engine.Careful]
}

// readSettings reads a model's parameters:
//
//	python                    the interpreter: a path, from the model's directory on, or a name that is looked for
//	EXECUTION_ENV_PATH        the directory of an environment, as in Triton
//	execute_timeout_seconds   the longest time for one batch; 0 or nothing means any
//	memory_limit_mib          the most memory of a worker; 0 or nothing means any
//	retry_apart               "true": a batch that failed may be run again in parts
//	retry_died                "true": a batch whose worker died may be run once more
//
// Others are left alone: they are the model's own.
func readSettings(src engine.Source) (set settings, err error) {
	cfg := src.Config
	if set.interpreter, err = interpreter(cfg, home(src)); err != nil {
		return set, err
	}
	seconds, err := number(cfg, "execute_timeout_seconds", "seconds")
	if err != nil {
		return set, err
	}
	set.limit = time.Duration(seconds * float64(time.Second))
	mebibytes, err := number(cfg, "memory_limit_mib", "mebibytes")
	if err != nil {
		return set, err
	}
	set.memory = int64(mebibytes * (1 << 20))
	if set.apart, err = truth(cfg, apartKey); err != nil {
		return set, err
	}
	set.died, err = truth(cfg, "retry_died")
	return set, err
}

// home returns the model's directory, which is above that of its version if it has
// any.
func home(src engine.Source) string {
	if src.Bare {
		return src.Dir
	}
	return filepath.Dir(src.Dir)
}

func number(cfg *modelconfig.Config, key, unit string) (float64, error) {
	text := cfg.Parameters[key]
	if text == "" {
		return 0, nil
	}
	n, err := strconv.ParseFloat(text, 64)
	if err != nil || !(n >= 0 && n <= 1e9) {
		return 0, wrong(cfg, key, "a number of %s, or 0 for no limit", unit)
	}
	return n, nil
}

const apartKey = "retry_apart"

func truth(cfg *modelconfig.Config, key string) (bool, error) {
	switch cfg.Parameters[key] {
	case "", "false":
		return false, nil
	case "true":
		return true, nil
	}
	return false, wrong(cfg, key, "true or false")
}

func wrong(cfg *modelconfig.Config, key, expected string, args ...any) error {
	return cfg.Wrong(fmt.Sprintf("parameters[%s]", key), fmt.Sprintf("%q", cfg.Parameters[key]), expected, args...)
}

const environment = "EXECUTION_ENV_PATH"

// interpreter finds what runs a model whose directory is dir: what its configuration
// names, or that of an environment beside it, or the one in the PATH.
func interpreter(cfg *modelconfig.Config, dir string) (string, error) {
	if name := cfg.Parameters["python"]; name != "" {
		if strings.Contains(name, "/") && !filepath.IsAbs(name) {
			name = filepath.Join(dir, name)
		}
		path, err := exec.LookPath(name)
		if err != nil {
			return "", wrong(cfg, "python", "an interpreter: %v", err)
		}
		return path, nil
	}
	if env := cfg.Parameters[environment]; env != "" {
		env = strings.ReplaceAll(env, "$$TRITON_MODEL_DIRECTORY", dir)
		if info, err := os.Stat(env); err == nil && !info.IsDir() {
			return "", wrong(cfg, environment, "a directory, because archives are not unpacked here: unpack it, and name the directory")
		}
		path, ok := inside(env)
		if !ok {
			return "", wrong(cfg, environment, "a directory with an interpreter, which would be %s", filepath.Join(env, "bin", "python3"))
		}
		return path, nil
	}
	for _, name := range []string{"venv", ".venv"} {
		if path, ok := inside(filepath.Join(dir, name)); ok {
			return path, nil
		}
	}
	path, err := exec.LookPath("python3")
	if err != nil {
		return "", cfg.Wrong("parameters[python]", "none", "an interpreter, because there is no venv beside the model, and no python3 in the PATH")
	}
	return path, nil
}

// inside returns the interpreter of an environment.
func inside(env string) (string, bool) {
	for _, name := range []string{"python3", "python"} {
		if path, err := exec.LookPath(filepath.Join(env, "bin", name)); err == nil {
			abs, err := filepath.Abs(path)
			return abs, err == nil
		}
	}
	return "", false
}
