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

// A starter starts worker processes, all from one thread, whose niceness they inherit.
//
// Each process holds one end of a pipe, its lifeline, to which nothing is written. When
// the server's end is closed, by the server or by the kernel because the server has exited
// for any reason, the kernel kills the worker and all processes that it started: it sends
// the signal of our choice (F_SETSIG) to the process group that owns the other end
// (O_ASYNC). This needs no code to run in the worker, which may be in an endless loop, nor
// another process. PR_SET_PDEATHSIG would kill only the worker itself, and would do so
// earlier.
type starter struct {
	starts chan func() // unbuffered: the caller waits for its turn
	ended  chan struct{}
}

func newStarter(nice int) *starter {
	s := &starter{make(chan func()), make(chan struct{})}
	go func() {
		defer close(s.ended)
		runtime.LockOSThread() // not unlocked, so that the thread ends with the goroutine
		if nice > 0 {
			_ = unix.Setpriority(unix.PRIO_PROCESS, unix.Gettid(), nice) // if this fails, workers run with the server's niceness
		}
		for start := range s.starts {
			start()
		}
	}()
	return s
}

// start starts a process in a new process group, and returns its lifeline, which the
// caller closes when the process has exited. It appends to cmd.ExtraFiles.
func (s *starter) start(cmd *exec.Cmd) (*os.File, error) {
	var ends [2]int
	if err := unix.Pipe2(ends[:], unix.O_CLOEXEC); err != nil {
		return nil, os.NewSyscallError("pipe2", err)
	}
	theirs, ours := os.NewFile(uintptr(ends[0]), "lifeline"), os.NewFile(uintptr(ends[1]), "lifeline")
	defer func() { _ = theirs.Close() }() // the process has a copy
	cmd.ExtraFiles = append(cmd.ExtraFiles, theirs)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	done := make(chan error)
	s.starts <- func() { done <- cmd.Start() }
	err := <-done
	if err == nil {
		if err = killOnClose(ends[0], cmd.Process.Pid); err == nil {
			return ours, nil
		}
		killGroup(cmd.Process.Pid)
		_ = cmd.Wait() // it was killed
	}
	_ = ours.Close()
	return nil, err
}

// killOnClose makes the kernel kill a process group when the other end of the pipe is
// closed.
func killOnClose(fd, group int) error {
	for _, step := range [][2]int{{unix.F_SETSIG, int(unix.SIGKILL)}, {unix.F_SETOWN, -group}, {unix.F_SETFL, unix.O_ASYNC}} {
		if _, err := unix.FcntlInt(uintptr(fd), step[0], step[1]); err != nil {
			return os.NewSyscallError("fcntl", err)
		}
	}
	return nil
}

// close stops the thread.
func (s *starter) close() {
	close(s.starts)
	<-s.ended
}

// awaitExit waits until a child process has exited, and leaves it a zombie: its id, and that
// of its group, are not given to other processes before it is reaped.
func awaitExit(pid int) {
	for unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOWAIT, nil) == unix.EINTR {
	}
}

// killGroup kills the process group of pid.
func killGroup(pid int) {
	_ = unix.Kill(-pid, unix.SIGKILL) // all processes may have exited already
}

// socketPair returns the two ends of a connection: the server's, and the one that the
// worker inherits.
func socketPair() (*net.UnixConn, *os.File, error) {
	ends, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, os.NewSyscallError("socketpair", err)
	}
	ours, theirs := os.NewFile(uintptr(ends[0]), "worker"), os.NewFile(uintptr(ends[1]), "server")
	conn, err := net.FileConn(ours) // duplicates it
	_ = ours.Close()
	if err != nil {
		_ = theirs.Close()
		return nil, nil, err
	}
	return conn.(*net.UnixConn), theirs, nil
}

// codeFile returns an anonymous file that contains the worker's code.
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

// processStatus returns whether a process is stopped, and its resident memory in bytes.
func processStatus(pid int) (stopped bool, resident int64) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false, 0
	}
	fields := bytes.Fields(b[bytes.LastIndexByte(b, ')')+1:]) // the name before it may contain any character
	const state, rss = 0, 21
	if len(fields) <= rss {
		return false, 0
	}
	pages, _ := strconv.ParseInt(string(fields[rss]), 10, 64)
	return string(fields[state]) == "T", pages * int64(os.Getpagesize())
}
