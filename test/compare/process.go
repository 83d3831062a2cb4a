package main

import (
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// A process is a server that runs, with all processes that it started.
type process struct {
	log   string
	cmd   *exec.Cmd
	ended chan struct{} // closed when the first of its processes has ended
}

// start runs a command in a session of its own, by which its processes are found.
func start(args, env []string, dir, log string) (*process, error) {
	out, err := os.Create(log)
	if err != nil {
		return nil, err
	}
	defer func() { _ = out.Close() }() // the server has its own
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, out, out
	cmd.Env = append(os.Environ(), env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	p := &process{log: log, cmd: cmd, ended: make(chan struct{})}
	go func() { // ended by stop, which waits for it
		_ = cmd.Wait() // how it ended is in its log
		close(p.ended)
	}()
	return p, nil
}

// over reports whether the server has ended by itself.
func (p *process) over() bool {
	select {
	case <-p.ended:
		return true
	default:
		return false
	}
}

// tail returns the last lines of the log.
func (p *process) tail() string {
	text, err := os.ReadFile(p.log)
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	return strings.Join(lines[max(0, len(lines)-5):], "\n")
}

// stop ends all processes of the server: politely, and after a while by force, those
// only that it has started.
func (p *process) stop() {
	all := p.members()
	for _, m := range all {
		_ = syscall.Kill(m.pid, syscall.SIGTERM) // it may have ended
	}
	for end := time.Now().Add(8 * time.Second); time.Now().Before(end) && living(all); {
		time.Sleep(20 * time.Millisecond)
	}
	for _, m := range append(all, p.members()...) {
		if m.lives() {
			_ = syscall.Kill(m.pid, syscall.SIGKILL)
		}
	}
	<-p.ended
}

// A member is one process of a server.
type member struct {
	pid     int
	started string // when, in the kernel's ticks: a process id may be given again
}

func living(all []member) bool {
	for _, m := range all {
		if m.lives() {
			return true
		}
	}
	return false
}

func (m member) lives() bool {
	s, err := readStat(m.pid)
	return err == nil && s.started == m.started && s.state != "Z"
}

// A stat is what the kernel says of a process.
type stat struct {
	state           string
	parent, session int
	used            time.Duration // CPU time
	started         string
}

// tick is the kernel's unit of CPU time, on every Linux that Go runs on.
const tick = 10 * time.Millisecond

func readStat(pid int) (stat, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return stat{}, err
	}
	_, rest, _ := strings.Cut(string(text[strings.LastIndexByte(string(text), ')'):]), " ")
	f := strings.Fields(rest) // from the third field on, as proc(5) counts
	if len(f) < 20 {
		return stat{}, fmt.Errorf("/proc/%d/stat has %d fields, expected 22 or more", pid, len(f)+2)
	}
	number := func(i int) int { n, _ := strconv.Atoi(f[i]); return n } // the kernel writes numbers
	return stat{f[0], number(1), number(3), time.Duration(number(11)+number(12)) * tick, f[19]}, nil
}

// members returns the server's processes: those that descend from it, and those of
// its session.
func (p *process) members() []member {
	stats := map[int]stat{}
	entries, _ := os.ReadDir("/proc") // without it there are none
	for _, e := range entries {
		if pid, err := strconv.Atoi(e.Name()); err == nil {
			if s, err := readStat(pid); err == nil {
				stats[pid] = s
			}
		}
	}
	first := p.cmd.Process.Pid
	var all []member
	for pid, s := range stats {
		for up, of := pid, s; ; up, of = of.parent, stats[of.parent] {
			if up == first || of.session == first {
				all = append(all, member{pid, s.started})
				break
			}
			if _, ok := stats[of.parent]; !ok || of.parent <= 1 {
				break
			}
		}
	}
	return all
}

// cpu returns the CPU time that the server's processes have used so far.
func (p *process) cpu() (used time.Duration) {
	for _, m := range p.members() {
		if s, err := readStat(m.pid); err == nil {
			used += s.used
		}
	}
	return used
}

// memory returns the bytes that the server's processes hold; what several share
// counts once.
func (p *process) memory() (held int64) {
	for _, m := range p.members() {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", m.pid))
		if err != nil {
			continue
		}
		for line := range strings.Lines(string(text)) {
			if f := strings.Fields(line); len(f) > 1 && f[0] == "Pss:" {
				kb, _ := strconv.ParseInt(f[1], 10, 64) // the kernel writes a number
				held += kb << 10
			}
		}
	}
	return held
}

// freePorts returns ports that nobody listens on. Few servers can be told to find
// their own, and MMS takes none above 32766.
func freePorts(n int) (ports []int) {
	var held []net.Listener // until all are found, or one might be found twice
	defer func() {
		for _, l := range held {
			_ = l.Close() // nobody has connected
		}
	}()
	for len(held) < n {
		port := 10_000 + rand.IntN(20_000)
		if l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port)); err == nil {
			held, ports = append(held, l), append(ports, port)
		}
	}
	return ports
}

// sizeOf returns the bytes of files and folders. What links lead to counts, once
// for each of them.
func sizeOf(paths ...string) (size int64, err error) {
	for _, path := range paths {
		there, err := filepath.EvalSymlinks(path)
		if err != nil {
			return 0, err
		}
		err = filepath.WalkDir(there, func(_ string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() {
				return err
			}
			info, err := d.Info()
			if errors.Is(err, fs.ErrNotExist) {
				return nil // Python has just replaced it
			}
			if err == nil && info.Mode().IsRegular() {
				size += info.Size()
			}
			return err
		})
		if err != nil {
			return 0, err
		}
	}
	return size, nil
}
