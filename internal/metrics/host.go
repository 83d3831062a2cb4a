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
	cpuUtilization = desc("nv_cpu_utilization", "Of the cores that the process may use, the share that it used since it was last asked, from 0 to 1")
	cpuMemoryTotal = desc("nv_cpu_memory_total_bytes", "Memory that the process may use, in bytes")
	cpuMemoryUsed  = desc("nv_cpu_memory_used_bytes", "What of that memory is in use, in bytes")
)

// A host tells how busy the container is that the process runs in. What Linux does
// not say is left out.
type host struct {
	root fs.FS

	mu   sync.Mutex // guards the following
	last time.Time
	used time.Duration // of processors, until then
}

func newHost(root fs.FS) *host {
	used, _ := cpuTime(root)
	return &host{root: root, last: time.Now(), used: used}
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

// utilization returns how busy the cores were since it was last called.
func (h *host) utilization() (share float64, ok bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	now := time.Now()
	used, ok := cpuTime(h.root)
	elapsed := now.Sub(h.last)
	if !ok || elapsed <= 0 {
		return 0, false
	}
	share = float64(used-h.used) / float64(elapsed) / float64(machine.Cores(h.root))
	h.last, h.used = now, used
	return min(share, 1), true
}

// tick is the unit of /proc/self/stat.
const tick = 10 * time.Millisecond

// cpuTime returns how long the process has been computing, on all cores together.
func cpuTime(root fs.FS) (time.Duration, bool) {
	text, err := fs.ReadFile(root, "proc/self/stat")
	if err != nil {
		return 0, false
	}
	// The name of the program comes second, in brackets, and may hold anything. From
	// what follows it, the 12th and 13th are the time in the program and in the kernel.
	fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
	if len(fields) < 13 {
		return 0, false
	}
	user, errUser := strconv.ParseInt(fields[11], 10, 64)
	kernel, errKernel := strconv.ParseInt(fields[12], 10, 64)
	return time.Duration(user+kernel) * tick, errUser == nil && errKernel == nil
}
