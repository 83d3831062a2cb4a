package servertest

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"
)

// Converse starts a process that reads lines and answers with lines. It ends when its input
// is closed, at the end of the test.
func Converse(t *testing.T, cmd *exec.Cmd) (in io.Writer, out *bufio.Scanner) {
	t.Helper()
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = stdin.Close()
		_ = cmd.Wait() // what it had to report, it has answered
	})
	return stdin, bufio.NewScanner(stdout)
}

var residentSize = regexp.MustCompile(`(?m)^VmRSS:\s+(\d+) kB$`)

// Resident returns the memory of the process, in KB.
func (s *Server) Resident() int {
	s.T.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", s.Cmd.Process.Pid))
	if err != nil {
		s.T.Skip(err)
	}
	n, err := strconv.Atoi(residentSize.FindStringSubmatch(string(text))[1])
	if err != nil {
		s.T.Fatal(err)
	}
	return n
}

// Usage is what the kernel says of the server's process.
type Usage struct {
	CPU     time.Duration // used so far, in the process and in the kernel for it
	Memory  int64         // resident bytes
	Threads int
}

// Usage returns what the server's process has used so far.
func (s *Server) Usage() Usage {
	s.T.Helper()
	return s.UsageOf(s.Cmd.Process.Pid)
}

// UsageOf is Usage for another process, such as one of the server's workers.
func (s *Server) UsageOf(pid int) Usage {
	s.T.Helper()
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		s.T.Fatal(err)
	}
	// The name of the program, in brackets, may have spaces in it. After it, and
	// counted from 0, there are the two times in hundredths of a second at 11 and 12,
	// the threads at 17, and the resident pages at 21.
	fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
	at := func(i int) int64 {
		v, err := strconv.ParseInt(fields[i], 10, 64)
		if err != nil {
			s.T.Fatal(err)
		}
		return v
	}
	return Usage{
		CPU:     time.Duration(at(11)+at(12)) * 10 * time.Millisecond,
		Memory:  at(21) * int64(os.Getpagesize()),
		Threads: int(at(17)),
	}
}

// Children returns the processes that a process has started and that live.
func Children(pid int) (all []int) {
	files, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	for _, file := range files {
		b, _ := os.ReadFile(file) // its thread may just have ended
		for field := range strings.FieldsSeq(string(b)) {
			if child, err := strconv.Atoi(field); err == nil && Alive(child) {
				all = append(all, child)
			}
		}
	}
	return all
}

// Alive reports whether a process exists and has not ended.
func Alive(pid int) bool {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err == nil && !bytes.Contains(b, []byte(") Z "))
}
