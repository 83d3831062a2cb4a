package python

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// A starter starts processes, all from one thread, which has the niceness that the
// workers shall have.
//
// Each hangs on a lifeline: the server's end of a pipe, to which nothing is written.
// When it is closed, by the server or by the kernel because the server has ended,
// however that happened, the kernel kills the worker and all that it has started. It
// signals the whole group of whoever has the other end (O_ASYNC), with a signal of our
// choice. Nothing has to run for that: neither in the worker, which may be in a loop,
// nor beside it. What the kernel does when a parent ends (PR_SET_PDEATHSIG) is for the
// worker alone, and would come before this.
type starter struct {
	starts chan func() // without room: whoever starts a process waits for it
	ended  chan struct{}
}

func newStarter(nice int) *starter {
	s := &starter{make(chan func()), make(chan struct{})}
	go func() {
		defer close(s.ended)
		runtime.LockOSThread() // for good: the thread ends with the goroutine
		if nice > 0 {
			_ = unix.Setpriority(unix.PRIO_PROCESS, unix.Gettid(), nice) // if it is refused, workers run all the same
		}
		for start := range s.starts {
			start()
		}
	}()
	return s
}

// start starts a process in a group of its own, and returns its lifeline, which the
// caller closes when the process has ended. It appends to the files that the process
// inherits.
func (s *starter) start(cmd *exec.Cmd) (*os.File, error) {
	var ends [2]int
	if err := unix.Pipe2(ends[:], unix.O_CLOEXEC); err != nil {
		return nil, os.NewSyscallError("pipe2", err)
	}
	theirs, ours := os.NewFile(uintptr(ends[0]), "lifeline"), os.NewFile(uintptr(ends[1]), "lifeline")
	defer func() { _ = theirs.Close() }() // the process has its own
	cmd.ExtraFiles = append(cmd.ExtraFiles, theirs)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	done := make(chan error)
	s.starts <- func() { done <- cmd.Start() }
	err := <-done
	if err == nil {
		if err = tie(ends[0], cmd.Process.Pid); err == nil {
			return ours, nil
		}
		killGroup(cmd.Process.Pid)
		_ = cmd.Wait() // it was killed
	}
	_ = ours.Close()
	return nil, err
}

// tie makes the kernel kill a group when the other end of a pipe is closed.
func tie(fd, group int) error {
	for _, step := range [][2]int{{unix.F_SETSIG, int(unix.SIGKILL)}, {unix.F_SETOWN, -group}, {unix.F_SETFL, unix.O_ASYNC}} {
		if _, err := unix.FcntlInt(uintptr(fd), step[0], step[1]); err != nil {
			return os.NewSyscallError("fcntl", err)
		}
	}
	return nil
}

// close ends the thread.
func (s *starter) close() {
	close(s.starts)
	<-s.ended
}

// killGroup ends a process and those that it started.
func killGroup(pid int) {
	_ = unix.Kill(-pid, unix.SIGKILL) // they may all have ended
}

// socketPair returns the two ends of a connection: the server's, and that which the
// worker inherits.
func socketPair() (*net.UnixConn, *os.File, error) {
	ends, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, os.NewSyscallError("socketpair", err)
	}
	ours, theirs := os.NewFile(uintptr(ends[0]), "worker"), os.NewFile(uintptr(ends[1]), "server")
	conn, err := net.FileConn(ours) // of a copy
	_ = ours.Close()
	if err != nil {
		_ = theirs.Close()
		return nil, nil, err
	}
	return conn.(*net.UnixConn), theirs, nil
}

// codeFile returns a file without a name that has the worker's code, for the worker
// to inherit.
func codeFile(code []byte) (*os.File, error) {
	fd, err := unix.MemfdCreate("shoal-worker", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("memfd_create", err)
	}
	f := os.NewFile(uintptr(fd), "shoal-worker")
	if _, err := f.Write(code); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// look returns whether a process is stopped, and how many bytes of memory it has.
func look(pid int) (stopped bool, resident int64) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false, 0
	}
	fields := bytes.Fields(b[bytes.LastIndexByte(b, ')')+1:]) // before it is a name of any characters
	const state, rss = 0, 21
	if len(fields) <= rss {
		return false, 0
	}
	pages, _ := strconv.ParseInt(string(fields[rss]), 10, 64)
	return string(fields[state]) == "T", pages * int64(os.Getpagesize())
}
