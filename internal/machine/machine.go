// Package machine reports which part of the machine the process may use: cores and memory,
// within its container, and how long it waited for cores.
//
// It reads Linux's files in /proc and /sys, of both versions of control groups. On other
// systems these files are missing, which means no limits: the cores are those that Go
// reports, and the memory is unknown. The package keeps no state: each call reads the
// files again, because available memory changes.
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

// Root returns the file system of this machine, to be passed to the other functions.
func Root() fs.FS { return os.DirFS("/") }

// Cores returns how many cores the process may use: those of its CPU affinity, or fewer if
// a control group has a lower quota. A fraction of a core counts as one, so the result is
// at least 1.
func Cores(root fs.FS) int {
	cores := affinity(read(root, "proc/self/status"))
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

// CPU returns the model name of the processor, if it is known.
func CPU(root fs.FS) string {
	parts := []string{runtime.GOARCH}
	for line := range strings.Lines(read(root, "proc/cpuinfo")) {
		if strings.TrimSpace(line) == "" {
			break // the other cores are the same
		}
		name, value, _ := strings.Cut(line, ":")
		switch strings.TrimSpace(name) {
		case "model name", "CPU implementer", "CPU part", "CPU variant":
			parts = append(parts, strings.TrimSpace(value))
		}
	}
	return strings.Join(parts, " ")
}

// Mebibytes converts bytes, and rounds up, so that a need never looks smaller than the limit that it
// exceeds.
func Mebibytes(n int64) int64 { return (n + 1<<20 - 1) >> 20 }

// Memory is the memory available to the process, in bytes.
type Memory struct {
	// Limit is the most that the process may use: the lowest limit of its control groups, or
	// the memory of the machine. 0 means unknown.
	Limit int64

	// Free is the part of Limit that is not in use. The page cache does not count as used,
	// because the kernel reclaims it on demand.
	Free int64

	// Contained reports whether the limit is that of a control group rather than the
	// machine's.
	Contained bool
}

// ReadMemory returns the current state of the memory.
func ReadMemory(root fs.FS) Memory {
	info := numbers(read(root, "proc/meminfo"))
	const kB = 1024 // the unit of /proc/meminfo
	m := Memory{Limit: info["MemTotal"] * kB, Free: info["MemAvailable"] * kB}
	if m.Limit == 0 {
		return Memory{}
	}
	for _, g := range groups(root, "memory") {
		limit, used := g.memory()
		if limit >= info["MemTotal"]*kB {
			continue // no limit: version 1 has a very large number
		}
		if limit < m.Limit {
			m.Limit, m.Contained = limit, true
		}
		m.Free = min(m.Free, max(0, limit-used))
	}
	return m
}

// Anonymous returns the memory of the process and of its children in bytes that is not backed
// by files, such as the weights of models; 0 if it is not known.
func Anonymous(root fs.FS) int64 { return anonymous(root, "self", maxGenerations) }

// maxGenerations is how deep Anonymous looks at children of children.
const maxGenerations = 8

func anonymous(root fs.FS, process string, generations int) (bytes int64) {
	for line := range strings.Lines(read(root, "proc/"+process+"/status")) {
		if value, ok := strings.CutPrefix(line, "RssAnon:"); ok {
			n, _ := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(value), "kB")), 10, 64)
			bytes += n << 10
		}
	}
	lists, _ := fs.Glob(root, "proc/"+process+"/task/*/children") // the pattern is valid
	for _, list := range lists {
		for child := range strings.FieldsSeq(read(root, list)) {
			if generations > 0 {
				bytes += anonymous(root, child, generations-1)
			}
		}
	}
	return bytes
}

// Waited returns how long tasks of the process's control group (or of the whole machine,
// if the group does not report it) were runnable without a core, plus the CPU time that a
// hypervisor stole. It is a running total: only the difference between two calls is
// meaningful. It is 0 if the kernel does not report pressure.
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
	return pressureTotal(pressure) + Stolen(root)
}

// pressureTotal parses the total of the first line of a pressure file, such as "some
// avg10=0.00 avg60=0.00 avg300=0.00 total=1234", in microseconds.
func pressureTotal(text string) time.Duration {
	line, _, _ := strings.Cut(text, "\n")
	_, total, _ := strings.Cut(line, "total=")
	n, err := strconv.ParseInt(strings.TrimSpace(total), 10, 64)
	if err != nil {
		return 0
	}
	return time.Duration(n) * time.Microsecond
}

// Stolen returns the CPU time that a hypervisor stole from all cores since the machine started; 0
// if the kernel does not report it. It is the eighth number of the first line of /proc/stat, in
// hundredths of a second.
func Stolen(root fs.FS) time.Duration {
	line, _, _ := strings.Cut(read(root, "proc/stat"), "\n")
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

// affinity returns the number of cores that the process is bound to; 0 means unknown.
func affinity(status string) int {
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

// A group is the directory of a control group.
type group struct {
	root    fs.FS
	dir     string
	unified bool // version 2
}

// groups returns the control groups of the process that may limit a resource, with their
// ancestors, of both versions: either version may have the resource's controller, and a
// directory without it lacks its files.
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
			all = append(all, ancestors(group{root: root, dir: m.point, unified: unified}, m.relative(in))...)
		}
	}
	return all
}

// ancestors returns the group at a path below top, and all groups between the two.
func ancestors(top group, below string) []group {
	var all []group
	for {
		all = append(all, group{root: top.root, dir: path.Join(top.dir, below), unified: top.unified})
		if below == "." {
			return all
		}
		below = path.Dir(below)
	}
}

// membership parses /proc/self/cgroup. It returns the path of the process by controller,
// that of version 2 under "".
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

// A mount is a mount point of a control group hierarchy.
type mount struct {
	from    string // path of the group that is mounted
	point   string // mount point without the leading slash
	kind    string // cgroup or cgroup2
	options string // in version 1 they include the controllers
}

// parseMount parses a line of /proc/self/mountinfo.
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

// relative returns the path of a group relative to the mount point. A container sees its
// own group at the mount point, although its path may be that outside of the container.
func (m mount) relative(p string) string {
	below, found := strings.CutPrefix(p, strings.TrimSuffix(m.from, "/"))
	below = path.Clean(strings.TrimPrefix(below, "/"))
	if !found || below == ".." || strings.HasPrefix(below, "../") {
		return "."
	}
	return below
}

// quota returns how many cores a group may use, rounded up; 0 means no limit.
func (g group) quota() int {
	var quota, period string
	if g.unified {
		quota, period, _ = strings.Cut(g.read("cpu.max"), " ")
	} else {
		quota, period = g.read("cpu.cfs_quota_us"), g.read("cpu.cfs_period_us")
	}
	q, errQ := strconv.ParseFloat(quota, 64) // "max" does not parse, and -1 means no limit
	p, errP := strconv.ParseFloat(period, 64)
	if errQ != nil || errP != nil || q <= 0 || p <= 0 {
		return 0
	}
	return int(math.Ceil(q / p))
}

// memory returns a group's limit, and how much of it is in use and cannot be reclaimed. If
// there is no limit, it returns a very large one.
func (g group) memory() (limit, used int64) {
	files, prefix := [...]string{"memory.max", "memory.current"}, ""
	if !g.unified {
		// Version 1 has separate counters that include child groups.
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

// numbers parses lines of a name and a number.
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

// read returns the contents of a file, "" if it cannot be read.
func read(root fs.FS, name string) string {
	text, err := fs.ReadFile(root, name)
	if err != nil {
		return ""
	}
	return string(text)
}
