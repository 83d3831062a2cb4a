package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/shoal-serving/shoal/tensor"
)

// batchTakes is how long a batch takes of what is no model.
const batchTakes = 500 * time.Millisecond

// textLength is how many characters a text has, each as a number, for those servers
// that know only those.
const textLength = 32

// hold starts a server in which batches only take their time, for behaviours.py. It
// writes where the server is and its process id, and returns the server's exit
// status when that ends, or when nothing can be read from in any more.
func hold(ctx context.Context, name, log string, in io.Reader, out io.Writer) (status int, err error) {
	all := servers()
	i := slices.IndexFunc(all, func(s *server) bool { return strings.HasPrefix(s.name, name) })
	if i < 0 {
		return 0, fmt.Errorf("found no server whose name begins with %q", name)
	}
	s := *all[i]
	if s.ours {
		s.prepare = (*launch).shoalPython
	}
	s.wires = map[string]*wire{protocolHTTP: s.wires[protocolHTTP]}
	root, err := filepath.Abs(".")
	if err != nil {
		return 0, err
	}
	folder, err := os.MkdirTemp("", "shoal-hold-")
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(folder)) }()
	if err := os.Mkdir(filepath.Join(folder, "logs"), 0o755); err != nil {
		return 0, err
	}
	row := tensor.Tensor{Name: "x", Type: tensor.FP32, Shape: []int64{1, textLength}, Data: make([]byte, 4*textLength)}
	answer := row
	answer.Name = "y"
	m := &subject{name: "slow", peers: setting{1, 1, 8, 20 * time.Millisecond}, in: []tensor.Tensor{row}, out: []tensor.Tensor{answer}, log: log}
	r := &run{results: &results{}, folder: folder, root: root, log: os.Stderr}
	up, err := r.up(ctx, m, &s)
	if err != nil {
		return 0, err
	}
	defer up.stop()
	// The question whether it answers is no part of the story.
	if err := os.Truncate(log, 0); err != nil {
		return 0, err
	}
	if _, err := fmt.Fprintf(out, "127.0.0.1:%s %d\n", up.port(0), up.cmd.Process.Pid); err != nil {
		return 0, err
	}
	left := make(chan struct{})
	go func() { // ended by whoever closes in, or with the process
		_, _ = io.Copy(io.Discard, in)
		close(left)
	}()
	select {
	case <-left:
	case <-up.ended:
		status = up.cmd.ProcessState.ExitCode()
		// Those that it leaves behind may still answer.
		for end := time.Now().Add(10 * time.Second); len(up.members()) > 0 && time.Now().Before(end); {
			time.Sleep(50 * time.Millisecond)
		}
	}
	return status, nil
}
