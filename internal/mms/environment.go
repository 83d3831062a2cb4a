package mms

import (
	"bytes"
	"cmp"
	"context"
	_ "embed" // for environment.py
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

//go:embed environment.py
var environmentScript []byte

// installTimeout limits the installation of an archive's requirements.
const installTimeout = 20 * time.Minute

// An environment is where the requirements of an archive are installed.
type environment struct {
	base         string // the interpreter whose packages stay importable
	requirements string // path of the requirements file
	dir          string // of the environment, which does not exist yet
}

// install creates the environment, and returns its interpreter.
func (e environment) install(ctx context.Context) (interpreter string, err error) {
	if err := os.MkdirAll(filepath.Dir(e.dir), 0o700); err != nil {
		return "", err
	}
	script := e.dir + ".py" // in a directory that has no modules which it could import by mistake
	if err := os.WriteFile(script, environmentScript, 0o600); err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(ctx, installTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, e.base, script, e.dir, e.requirements)
	var output bytes.Buffer
	cmd.Stdout, cmd.Stderr = &output, &output
	// pip starts processes of its own, which must end with it.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = time.Second
	if err := cmd.Run(); err != nil {
		return "", errors.New(cmp.Or(lastLines(output.String()), err.Error()))
	}
	return filepath.Join(e.dir, "bin", "python3"), nil
}

// lastLines returns the end of pip's output, which says what went wrong.
func lastLines(text string) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	return strings.Join(lines[max(0, len(lines)-5):], "; ")
}
