package metrics

import (
	"fmt"
	"testing"
	"testing/fstest"
)

// linux returns the files of a machine with 8 MiB of memory, a quarter of it in use, whose cores
// have spent the given numbers of ticks.
func linux(busy, idle int) fstest.MapFS {
	file := func(text string) *fstest.MapFile { return &fstest.MapFile{Data: []byte(text)} }
	return fstest.MapFS{
		"proc/stat":    file(fmt.Sprintf("cpu  %d 0 40 %d 30 0 0 0 7 0\ncpu0 1 2 3 4 5 6 7 8 9 10\nintr 5\n", busy-40, idle-30)),
		"proc/meminfo": file("MemTotal: 8192 kB\nMemAvailable: 6144 kB\n"),
	}
}

func TestUtilizationIsOfTheTimeSinceItWasLastAsked(t *testing.T) {
	h := newHost(linux(100, 50))
	for _, tt := range []struct {
		busy, idle int
		want       float64
	}{
		{200, 350, 0.25},
		{200, 350, 0}, // no tick has passed
		{200, 450, 0},
		{600, 450, 1},
		{700, 445, 1}, // the kernel may take time back
	} {
		h.root = linux(tt.busy, tt.idle)
		if got, ok := h.utilization(); !ok || got != tt.want {
			t.Errorf("with %d ticks busy and %d idle: %v, %v, want %v", tt.busy, tt.idle, got, ok, tt.want)
		}
	}
	for name, root := range map[string]fstest.MapFS{"without Linux": {}, "with another file": {"proc/stat": &fstest.MapFile{Data: []byte("cpu 1 2 x 4 5 6 7 8\n")}}} {
		h.root = root
		if got, ok := h.utilization(); ok {
			t.Errorf("%s: %v", name, got)
		}
	}
}
