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

// settings are the parameters of a configuration that concern its workers.
type settings struct {
	interpreter           string
	limit                 time.Duration // of one batch; 0 means no limit
	memory                int64         // limit per worker in bytes; 0 means no limit
	retryApart, retryDied bool          // see [engine.RetryPolicy]
}

// readSettings reads a model's parameters:
//
//	python                    the interpreter: a path, relative to the model's directory, or a name to look up in PATH
//	EXECUTION_ENV_PATH        the directory of an environment, as in Triton
//	execute_timeout_seconds   the time limit of one batch; 0 or empty means none
//	memory_limit_mib          the memory limit of a worker; 0 or empty means none
//	retry_apart               "true": a failed batch may be split and run again
//	retry_died                "true": a batch whose worker died may be run once more
//
// Other parameters are ignored: they are meant for the model.
func readSettings(src engine.Source) (set settings, err error) {
	cfg := src.Config
	if set.interpreter, err = interpreter(cfg, modelDir(src)); err != nil {
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
	if set.retryApart, err = boolean(cfg, retryApartKey); err != nil {
		return set, err
	}
	set.retryDied, err = boolean(cfg, "retry_died")
	return set, err
}

// modelDir returns the model's directory, which contains that of its version if it has
// one.
func modelDir(src engine.Source) string {
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
		return 0, invalidParameter(cfg, key, "a number of %s, or 0 for no limit", unit)
	}
	return n, nil
}

const retryApartKey = "retry_apart"

func boolean(cfg *modelconfig.Config, key string) (bool, error) {
	switch cfg.Parameters[key] {
	case "", "false":
		return false, nil
	case "true":
		return true, nil
	}
	return false, invalidParameter(cfg, key, "true or false")
}

func invalidParameter(cfg *modelconfig.Config, key, expected string, args ...any) error {
	return cfg.Wrong(fmt.Sprintf("parameters[%s]", key), fmt.Sprintf("%q", cfg.Parameters[key]), expected, args...)
}

const environmentKey = "EXECUTION_ENV_PATH"

// interpreter returns the interpreter for the model in dir: the one that its configuration
// names, or that of a virtual environment in dir, or python3 in PATH.
func interpreter(cfg *modelconfig.Config, dir string) (string, error) {
	if name := cfg.Parameters["python"]; name != "" {
		if strings.Contains(name, "/") && !filepath.IsAbs(name) {
			name = filepath.Join(dir, name)
		}
		path, err := exec.LookPath(name)
		if err != nil {
			return "", invalidParameter(cfg, "python", "an interpreter: %v", err)
		}
		return path, nil
	}
	if env := cfg.Parameters[environmentKey]; env != "" {
		env = strings.ReplaceAll(env, "$$TRITON_MODEL_DIRECTORY", dir)
		if info, err := os.Stat(env); err == nil && !info.IsDir() {
			return "", invalidParameter(cfg, environmentKey, "a directory, because archives are not supported: unpack it and set the parameter to its directory")
		}
		path, ok := environmentInterpreter(env)
		if !ok {
			return "", invalidParameter(cfg, environmentKey, "a directory with an interpreter, which would be %s", filepath.Join(env, "bin", "python3"))
		}
		return path, nil
	}
	for _, name := range []string{"venv", ".venv"} {
		if path, ok := environmentInterpreter(filepath.Join(dir, name)); ok {
			return path, nil
		}
	}
	path, err := exec.LookPath("python3")
	if err != nil {
		return "", cfg.Invalid("parameters[python]", "no Python interpreter: the model's directory has no venv, and the PATH has no python3; "+
			"install Python 3 and numpy, such as with \"apt install python3-numpy\", or set the parameter python to the path of an interpreter")
	}
	return path, nil
}

// Interpreter returns the path of the interpreter that would run the model in dir.
func Interpreter(cfg *modelconfig.Config, dir string) (string, error) { return interpreter(cfg, dir) }

// environmentInterpreter returns the interpreter of an environment, if it has one.
func environmentInterpreter(env string) (string, bool) {
	for _, name := range []string{"python3", "python"} {
		if path, err := exec.LookPath(filepath.Join(env, "bin", name)); err == nil {
			abs, err := filepath.Abs(path)
			return abs, err == nil
		}
	}
	return "", false
}
