package metrics

import (
	"io/fs"
	"strconv"
	"strings"
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/shoal-serving/shoal/internal/machine"
)

var (
	cpuUtilization = desc("nv_cpu_utilization", "Share of the machine's cores used since the last scrape by all processes, from 0 to 1")
	cpuMemoryTotal = desc("nv_cpu_memory_total_bytes", "Memory available to the process: that of its container, or of the machine")
	cpuMemoryUsed  = desc("nv_cpu_memory_used_bytes", "Used part of that memory")
)

// A host reports the CPU utilization of the machine, as Triton does, and the memory of the
// container that the process runs in. It omits what Linux does not report.
type host struct {
	root fs.FS

	mu   sync.Mutex // guards the following
	last cpuTimes   // at the last scrape
}

func newHost(root fs.FS) *host {
	h := &host{root: root}
	h.last, _ = readCPU(root)
	return h
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
	now, ok := readCPU(h.root)
	before := h.last
	if ok {
		h.last = now
	}
	if now.all <= before.all {
		return 0, ok
	}
	// The kernel may count less time of waiting for disks than before.
	return min(1, 1-float64(now.idle-before.idle)/float64(now.all-before.all)), ok
}

// cpuTimes are the times that all cores have spent, in ticks.
type cpuTimes struct{ all, idle int64 }

// readCPU reads the first line of /proc/stat: user, nice, system, idle, iowait, irq, softirq,
// steal, and guest times that user and nice contain.
func readCPU(root fs.FS) (t cpuTimes, ok bool) {
	text, err := fs.ReadFile(root, "proc/stat")
	if err != nil {
		return t, false
	}
	line, _, _ := strings.Cut(string(text), "\n")
	fields := strings.Fields(line)
	if len(fields) < 9 || fields[0] != "cpu" {
		return t, false
	}
	for i, field := range fields[1:9] {
		n, err := strconv.ParseInt(field, 10, 64)
		if err != nil {
			return t, false
		}
		t.all += n
		if i == 3 || i == 4 {
			t.idle += n
		}
	}
	return t, true
}
