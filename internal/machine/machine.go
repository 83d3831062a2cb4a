// Package machine says how much of this computer the process may use: of its
// cores and its memory, within the container that it runs in, and how long it had
// to wait for cores.
//
// It reads what Linux tells in /proc and /sys, of both versions of control
// groups. Elsewhere those files are missing, which means no limit: then there are
// the cores that Go counts, and nothing is known of memory. It decides nothing
// and remembers nothing: each call reads again, since memory comes and goes.
package machine

import (
	"io/fs"
	"math"
	"os"
	"path"
	"runtime"
	"strconv"
	"strings"
	"time"
)

// Root is the file system of this machine, for the functions that want one.
func Root() fs.FS { return os.DirFS("/") }

// Cores returns how many cores the process may keep busy at once: those it is
// bound to, or fewer if the quota of a control group is less. A part of a core is
// counted as one, so there is always one at least.
func Cores(root fs.FS) int {
	cores := allowed(read(root, "proc/self/status"))
	if cores == 0 {
		cores = runtime.NumCPU()
	}
	for _, g := range groups(root, "cpu") {
		if quota := g.quota(); quota > 0 {
			cores = min(cores, quota)
		}
	}
	return cores
}

// CPU returns what kind of processor this is, as far as it tells.
func CPU(root fs.FS) string {
	parts := []string{runtime.GOARCH}
	for line := range strings.Lines(read(root, "proc/cpuinfo")) {
		if strings.TrimSpace(line) == "" {
			break // the next ones are alike
		}
		name, value, _ := strings.Cut(line, ":")
		switch strings.TrimSpace(name) {
		case "model name", "CPU implementer", "CPU part", "CPU variant":
			parts = append(parts, strings.TrimSpace(value))
		}
	}
	return strings.Join(parts, " ")
}

// Memory is what there is for the process, in bytes.
type Memory struct {
	// Limit is the most that it may use: the lowest limit of its control groups,
	// or all that the machine has. 0 means that it is unknown.
	Limit int64

	// Free is what of it is not in use. Files that the kernel keeps in memory are
	// not counted as use, because it gives them up when memory is wanted.
	Free int64

	// Contained says that the limit is that of a control group, and not of the
	// machine.
	Contained bool
}

// ReadMemory returns what memory there is now.
func ReadMemory(root fs.FS) Memory {
	info := numbers(read(root, "proc/meminfo"))
	const kB = 1024 // the unit of that file
	m := Memory{Limit: info["MemTotal"] * kB, Free: info["MemAvailable"] * kB}
	if m.Limit == 0 {
		return Memory{}
	}
	for _, g := range groups(root, "memory") {
		limit, used := g.memory()
		if limit >= info["MemTotal"]*kB {
			continue // as good as none; version 1 writes a very large number
		}
		if limit < m.Limit {
			m.Limit, m.Contained = limit, true
		}
		m.Free = min(m.Free, max(0, limit-used))
	}
	return m
}

// Waited returns for how long somebody in the process's control group, or anybody
// where that does not tell, was ready to compute and had no core, since some moment
// in the past, and for how long a hypervisor took cores away. Only the difference
// between two calls means anything; it is 0 where the kernel keeps no account.
func Waited(root fs.FS) time.Duration {
	pressure := ""
	for _, g := range groups(root, "cpu") {
		if pressure == "" {
			pressure = g.read("cpu.pressure")
		}
	}
	if pressure == "" {
		pressure = read(root, "proc/pressure/cpu")
	}
	return stalled(pressure) + stolen(read(root, "proc/stat"))
}

// stalled reads the total of the first line of an account of pressure, such as
// "some avg10=0.00 avg60=0.00 avg300=0.00 total=1234", in microseconds.
func stalled(text string) time.Duration {
	line, _, _ := strings.Cut(text, "\n")
	_, total, _ := strings.Cut(line, "total=")
	n, err := strconv.ParseInt(strings.TrimSpace(total), 10, 64)
	if err != nil {
		return 0
	}
	return time.Duration(n) * time.Microsecond
}

// stolen reads what a hypervisor took, of all cores together, from /proc/stat: the
// eighth number of its first line, in hundredths of a second.
func stolen(text string) time.Duration {
	line, _, _ := strings.Cut(text, "\n")
	all := strings.Fields(line)
	if len(all) < 9 || all[0] != "cpu" {
		return 0
	}
	n, err := strconv.ParseInt(all[8], 10, 64)
	if err != nil {
		return 0
	}
	return time.Duration(n) * 10 * time.Millisecond
}

// allowed counts the cores that a process is bound to; 0 means that it is unknown.
func allowed(status string) int {
	for line := range strings.Lines(status) {
		list, found := strings.CutPrefix(line, "Cpus_allowed_list:")
		if !found {
			continue
		}
		n := 0
		for part := range strings.SplitSeq(strings.TrimSpace(list), ",") { // such as 0-3,8
			first, last, isRange := strings.Cut(part, "-")
			if !isRange {
				last = first
			}
			a, errA := strconv.Atoi(first)
			b, errB := strconv.Atoi(last)
			if errA != nil || errB != nil || b < a {
				return 0
			}
			n += b - a + 1
		}
		return n
	}
	return 0
}

// A group is the folder of a control group.
type group struct {
	root    fs.FS
	dir     string
	unified bool // version 2
}

// groups returns the control groups of the process that may limit a resource, and
// those around them, of both versions: each of the two may have the resource's
// controller, and a folder without it has none of its files.
func groups(root fs.FS, controller string) []group {
	paths := membership(read(root, "proc/self/cgroup"))
	var all []group
	for line := range strings.Lines(read(root, "proc/self/mountinfo")) {
		m, ok := parseMount(line)
		if !ok {
			continue
		}
		unified := m.kind == "cgroup2"
		in, member := paths[controller]
		if unified {
			in, member = paths[""]
		} else if !m.has(controller) {
			continue
		}
		if member {
			all = append(all, upwards(group{root: root, dir: m.point, unified: unified}, m.inside(in))...)
		}
	}
	return all
}

// upwards returns the group at a path below top, and all between the two.
func upwards(top group, below string) []group {
	var all []group
	for {
		all = append(all, group{root: top.root, dir: path.Join(top.dir, below), unified: top.unified})
		if below == "." {
			return all
		}
		below = path.Dir(below)
	}
}

// membership reads /proc/self/cgroup: the path of the process by controller, that
// of version 2 under "".
func membership(text string) map[string]string {
	paths := map[string]string{}
	for line := range strings.Lines(text) {
		parts := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(parts) != 3 {
			continue
		}
		for controller := range strings.SplitSeq(parts[1], ",") {
			paths[controller] = parts[2]
		}
	}
	return paths
}

// A mount is a place where control groups can be seen.
type mount struct {
	from    string // what of them is seen there: the path of the topmost
	point   string // where, without the leading slash
	kind    string // cgroup or cgroup2
	options string // in version 1 also the controllers
}

// parseMount reads a line of /proc/self/mountinfo.
func parseMount(line string) (m mount, ok bool) {
	head, tail, found := strings.Cut(line, " - ")
	where, what := strings.Fields(head), strings.Fields(tail)
	if !found || len(where) < 5 || len(what) < 3 || what[0] != "cgroup" && what[0] != "cgroup2" {
		return m, false
	}
	return mount{from: where[3], point: strings.TrimPrefix(where[4], "/"), kind: what[0], options: what[2]}, true
}

func (m mount) has(controller string) bool {
	return strings.Contains(","+m.options+",", ","+controller+",")
}

// inside returns where a group is below the mount's point. A container sees its
// own group at the point itself, while its path may be told as seen from outside.
func (m mount) inside(p string) string {
	below, found := strings.CutPrefix(p, strings.TrimSuffix(m.from, "/"))
	below = path.Clean(strings.TrimPrefix(below, "/"))
	if !found || below == ".." || strings.HasPrefix(below, "../") {
		return "."
	}
	return below
}

// quota returns how many cores a group may use, rounded up; 0 means any number.
func (g group) quota() int {
	var quota, period string
	if g.unified {
		quota, period, _ = strings.Cut(g.read("cpu.max"), " ")
	} else {
		quota, period = g.read("cpu.cfs_quota_us"), g.read("cpu.cfs_period_us")
	}
	q, errQ := strconv.ParseFloat(quota, 64) // "max" is no number, and -1 no limit
	p, errP := strconv.ParseFloat(period, 64)
	if errQ != nil || errP != nil || q <= 0 || p <= 0 {
		return 0
	}
	return int(math.Ceil(q / p))
}

// memory returns a group's limit, and how much of it is in use and cannot be given
// up. No limit is a very large one.
func (g group) memory() (limit, used int64) {
	files, prefix := [...]string{"memory.max", "memory.current"}, ""
	if !g.unified {
		// Version 1 counts the groups inside apart.
		files, prefix = [...]string{"memory.limit_in_bytes", "memory.usage_in_bytes"}, "total_"
	}
	limit, err := strconv.ParseInt(g.read(files[0]), 10, 64)
	if err != nil {
		return math.MaxInt64, 0
	}
	used, err = strconv.ParseInt(g.read(files[1]), 10, 64)
	if err != nil {
		return limit, 0
	}
	stat := numbers(g.read("memory.stat"))
	return limit, max(0, used-stat[prefix+"inactive_file"]-stat[prefix+"active_file"])
}

func (g group) read(name string) string {
	return strings.TrimSpace(read(g.root, path.Join(g.dir, name)))
}

// numbers reads lines of a name and a number.
func numbers(text string) map[string]int64 {
	all := map[string]int64{}
	for line := range strings.Lines(text) {
		if f := strings.Fields(line); len(f) >= 2 {
			if n, err := strconv.ParseInt(f[1], 10, 64); err == nil {
				all[strings.TrimSuffix(f[0], ":")] = n
			}
		}
	}
	return all
}

// read returns what is in a file, nothing if it cannot be read.
func read(root fs.FS, name string) string {
	text, err := fs.ReadFile(root, name)
	if err != nil {
		return ""
	}
	return string(text)
}
