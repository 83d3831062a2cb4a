package metrics

import (
	"bytes"
	"io/fs"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/shoal-serving/shoal/internal/machine"
)

var (
	cpuUtilization = desc("nv_cpu_utilization", "Share of the available cores used since the last scrape, from 0 to 1")
	cpuMemoryTotal = desc("nv_cpu_memory_total_bytes", "Memory available to the process: that of its container, or of the machine")
	cpuMemoryUsed  = desc("nv_cpu_memory_used_bytes", "Used part of that memory")
)

// A host reports the CPU and memory utilization of the container that the process runs in.
// It omits what Linux does not report.
type host struct {
	root fs.FS

	mu   sync.Mutex // guards the following
	last time.Time
	cpu  time.Duration // CPU time at the last scrape
}

func newHost(root fs.FS) *host {
	used, _ := cpuTime(root)
	return &host{root: root, last: time.Now(), cpu: used}
}

// Describe implements [prometheus.Collector].
func (h *host) Describe(out chan<- *prometheus.Desc) {
	out <- cpuUtilization
	out <- cpuMemoryTotal
	out <- cpuMemoryUsed
}

// Collect implements [prometheus.Collector].
func (h *host) Collect(out chan<- prometheus.Metric) {
	if share, ok := h.utilization(); ok {
		out <- prometheus.MustNewConstMetric(cpuUtilization, prometheus.GaugeValue, share)
	}
	if m := machine.ReadMemory(h.root); m.Limit > 0 {
		out <- prometheus.MustNewConstMetric(cpuMemoryTotal, prometheus.GaugeValue, float64(m.Limit))
		out <- prometheus.MustNewConstMetric(cpuMemoryUsed, prometheus.GaugeValue, float64(m.Limit-m.Free))
	}
}

// utilization returns the CPU utilization since the last call.
func (h *host) utilization() (share float64, ok bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	now := time.Now()
	used, ok := cpuTime(h.root)
	elapsed := now.Sub(h.last)
	if !ok || elapsed <= 0 {
		return 0, false
	}
	share = float64(used-h.cpu) / float64(elapsed) / float64(machine.Cores(h.root))
	h.last, h.cpu = now, used
	return min(share, 1), true
}

// tick is the time unit of /proc/self/stat.
const tick = 10 * time.Millisecond

// cpuTime returns the CPU time of the process on all cores.
func cpuTime(root fs.FS) (time.Duration, bool) {
	text, err := fs.ReadFile(root, "proc/self/stat")
	if err != nil {
		return 0, false
	}
	// The second field is the program's name in parentheses, which may contain any character.
	// Counted after it, fields 12 and 13 are the user and the system time.
	fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
	if len(fields) < 13 {
		return 0, false
	}
	user, errUser := strconv.ParseInt(fields[11], 10, 64)
	kernel, errKernel := strconv.ParseInt(fields[12], 10, 64)
	return time.Duration(user+kernel) * tick, errUser == nil && errKernel == nil
}
