package machine

import (
	"runtime"
	"testing"
	"testing/fstest"
	"time"
)

const mb = 1 << 20

// tree is a file system with eight cores and 16 GB of memory, 12 of them free, plus the
// given files.
func tree(files map[string]string) fstest.MapFS {
	root := fstest.MapFS{
		"proc/self/status": {Data: []byte("Name:\tshoal\nCpus_allowed:\tff\nCpus_allowed_list:\t0-7\n")},
		"proc/meminfo":     {Data: []byte("MemTotal:       16777216 kB\nMemFree:         1048576 kB\nMemAvailable:   12582912 kB\nHugePages_Total:       0\n")},
	}
	for name, text := range files {
		root[name] = &fstest.MapFile{Data: []byte(text)}
	}
	return root
}

const (
	mountV2     = "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"
	mountMemory = "35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n"
	mountCPU    = "32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw,relatime - cgroup cgroup rw,cpu,cpuacct\n"
	mountRoot   = "23 1 8:1 / / rw,relatime - ext4 /dev/sda1 rw\n"
)

var trees = map[string]struct {
	files  map[string]string
	cores  int
	memory Memory
}{
	"no control groups": {
		cores: 8, memory: Memory{Limit: 16384 * mb, Free: 12288 * mb},
	},
	"bound to some cores": {
		files: map[string]string{"proc/self/status": "Cpus_allowed_list:\t0-1,5,7\n"},
		cores: 4, memory: Memory{Limit: 16384 * mb, Free: 12288 * mb},
	},
	"version 2": {
		files: map[string]string{
			"proc/self/cgroup": "0::/app\n", "proc/self/mountinfo": mountRoot + mountV2,
			"sys/fs/cgroup/app/cpu.max":        "250000 100000\n",
			"sys/fs/cgroup/app/memory.max":     "536870912\n",
			"sys/fs/cgroup/app/memory.current": "419430400\n",
			"sys/fs/cgroup/app/memory.stat":    "anon 314572800\nfile 104857600\ninactive_file 73400320\nactive_file 31457280\n",
		},
		cores: 3, memory: Memory{Limit: 512 * mb, Free: 212 * mb, Contained: true},
	},
	"version 2 without limits": {
		files: map[string]string{
			"proc/self/cgroup": "0::/app\n", "proc/self/mountinfo": mountV2,
			"sys/fs/cgroup/app/cpu.max": "max 100000\n", "sys/fs/cgroup/app/memory.max": "max\n", "sys/fs/cgroup/app/memory.current": "419430400\n",
		},
		cores: 8, memory: Memory{Limit: 16384 * mb, Free: 12288 * mb},
	},
	"a limit further up": {
		files: map[string]string{
			"proc/self/cgroup": "0::/pods/one/main\n", "proc/self/mountinfo": mountV2,
			"sys/fs/cgroup/pods/one/main/cpu.max":    "max 100000",
			"sys/fs/cgroup/pods/one/main/memory.max": "1073741824", "sys/fs/cgroup/pods/one/main/memory.current": "104857600",
			"sys/fs/cgroup/pods/one/cpu.max": "50000 100000",
			"sys/fs/cgroup/pods/memory.max":  "2147483648", "sys/fs/cgroup/pods/memory.current": "2097152000",
		},
		cores: 1, memory: Memory{Limit: 1024 * mb, Free: 48 * mb, Contained: true}, // other groups use the rest
	},
	"a container that sees its own group at the top": {
		files: map[string]string{
			"proc/self/cgroup": "0::/\n", "proc/self/mountinfo": mountV2,
			"sys/fs/cgroup/cpu.max": "100000 100000", "sys/fs/cgroup/memory.max": "1073741824", "sys/fs/cgroup/memory.current": "0",
		},
		cores: 1, memory: Memory{Limit: 1024 * mb, Free: 1024 * mb, Contained: true},
	},
	"version 1, with the path as it is outside of the container": {
		files: map[string]string{
			"proc/self/cgroup": "4:memory:/docker/abc\n1:cpu,cpuacct:/docker/abc\n",
			"proc/self/mountinfo": "35 31 0:32 /docker/abc /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n" +
				"32 31 0:29 /docker/abc /sys/fs/cgroup/cpu,cpuacct ro - cgroup cgroup rw,cpu,cpuacct\n",
			"sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "150000\n", "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "50000\n",
			"sys/fs/cgroup/memory/memory.limit_in_bytes": "1073741824\n", "sys/fs/cgroup/memory/memory.usage_in_bytes": "838860800\n",
			"sys/fs/cgroup/memory/memory.stat": "inactive_file 1\ntotal_inactive_file 314572800\ntotal_active_file 0\n",
		},
		cores: 3, memory: Memory{Limit: 1024 * mb, Free: 524 * mb, Contained: true},
	},
	"version 1 without limits": {
		files: map[string]string{
			"proc/self/cgroup": "4:memory:/a/b\n1:cpu,cpuacct:/a\n", "proc/self/mountinfo": mountMemory + mountCPU,
			"sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_quota_us": "-1\n", "sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_period_us": "100000\n",
			"sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n", "sys/fs/cgroup/memory/memory.usage_in_bytes": "1\n",
		},
		cores: 8, memory: Memory{Limit: 16384 * mb, Free: 12288 * mb},
	},
	"both versions": {
		files: map[string]string{
			"proc/self/cgroup":                             "4:memory:/a\n1:cpu,cpuacct:/a\n0::/user\n",
			"proc/self/mountinfo":                          mountMemory + mountCPU + "41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n",
			"sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_quota_us": "200000\n", "sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_period_us": "100000\n",
			"sys/fs/cgroup/memory/a/memory.limit_in_bytes": "2147483648\n", "sys/fs/cgroup/memory/a/memory.usage_in_bytes": "1073741824\n",
			"sys/fs/cgroup/unified/user/cgroup.procs": "1\n",
		},
		cores: 2, memory: Memory{Limit: 2048 * mb, Free: 1024 * mb, Contained: true},
	},
	"the machine has less left than the container": {
		files: map[string]string{
			"proc/meminfo":     "MemTotal: 16777216 kB\nMemAvailable: 102400 kB\n",
			"proc/self/cgroup": "0::/\n", "proc/self/mountinfo": mountV2,
			"sys/fs/cgroup/memory.max": "1073741824", "sys/fs/cgroup/memory.current": "0",
		},
		cores: 8, memory: Memory{Limit: 1024 * mb, Free: 100 * mb, Contained: true},
	},
	"more in use than allowed": {
		files: map[string]string{
			"proc/self/cgroup": "0::/\n", "proc/self/mountinfo": mountV2,
			"sys/fs/cgroup/memory.max": "1048576", "sys/fs/cgroup/memory.current": "2097152",
		},
		cores: 8, memory: Memory{Limit: mb, Contained: true},
	},
	"files that make no sense": {
		files: map[string]string{
			"proc/self/status": "Cpus_allowed_list:\t3-1\n", "proc/self/cgroup": "what\n0::/../..\n", "proc/self/mountinfo": "what\n" + mountV2,
			"sys/fs/cgroup/cpu.max": "1", "sys/fs/cgroup/memory.max": "much",
		},
		cores: runtime.NumCPU(), memory: Memory{Limit: 16384 * mb, Free: 12288 * mb},
	},
}

func TestTheLowestLimitCounts(t *testing.T) {
	for name, tt := range trees {
		root := tree(tt.files)
		if got := Cores(root); got != tt.cores {
			t.Errorf("%s: %d cores, want %d", name, got, tt.cores)
		}
		if got := ReadMemory(root); got != tt.memory {
			t.Errorf("%s: memory %+v, want %+v", name, got, tt.memory)
		}
	}
}

func TestWhereThereAreNoSuchFilesMemoryIsUnknown(t *testing.T) {
	if got := ReadMemory(fstest.MapFS{}); got != (Memory{}) {
		t.Errorf("memory %+v, want none known", got)
	}
	if got := Cores(fstest.MapFS{}); got != runtime.NumCPU() {
		t.Errorf("%d cores, want Go's %d", got, runtime.NumCPU())
	}
}

func TestThisMachineHasCoresAndMemory(t *testing.T) {
	if got := Cores(Root()); got < 1 || got > runtime.NumCPU() {
		t.Errorf("%d cores, want 1 to %d", got, runtime.NumCPU())
	}
	m := ReadMemory(Root())
	if runtime.GOOS == "linux" && (m.Limit <= 0 || m.Free < 0 || m.Free > m.Limit) {
		t.Errorf("memory %+v", m)
	}
}

func TestWaitingForCoresIsThatOfTheOwnGroupAndWhatWasStolen(t *testing.T) {
	machine := "some avg10=9.00 avg60=9.00 avg300=9.00 total=7000\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=0\n"
	for name, tt := range map[string]struct {
		files map[string]string
		want  time.Duration
	}{
		"nothing is told": {nil, 0},
		"the machine's":   {map[string]string{"proc/pressure/cpu": machine, "proc/stat": "cpu  1 2 3 4 5 6 7 0 9 10\n"}, 7 * time.Millisecond},
		"the group's": {map[string]string{
			"proc/pressure/cpu": machine, "proc/self/cgroup": "0::/\n", "proc/self/mountinfo": mountV2,
			"sys/fs/cgroup/cpu.pressure": "some avg10=0.00 avg60=0.00 avg300=0.00 total=5000\n",
		}, 5 * time.Millisecond},
		"stolen":     {map[string]string{"proc/stat": "cpu  1 2 3 4 5 6 7 8 9 10\ncpu0 1 2 3\n"}, 80 * time.Millisecond},
		"no account": {map[string]string{"proc/pressure/cpu": "off\n", "proc/stat": "cpu 1 2 3\n"}, 0},
	} {
		if got := Waited(tree(tt.files)); got != tt.want {
			t.Errorf("%s: %v, want %v", name, got, tt.want)
		}
	}
}

func TestTheKindOfCPUIsThatOfTheFirst(t *testing.T) {
	for text, want := range map[string]string{
		"": runtime.GOARCH,
		"processor\t: 0\nmodel name\t: Fast 9\nflags\t\t: a b\n\nprocessor\t: 1\nmodel name\t: Fast 9\n": runtime.GOARCH + " Fast 9",
		"processor\t: 0\nCPU implementer\t: 0x41\nCPU part\t: 0xd0c\n":                                   runtime.GOARCH + " 0x41 0xd0c",
	} {
		if got := CPU(tree(map[string]string{"proc/cpuinfo": text})); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}

func TestMemoryIsThatOfTheProcessAndItsChildren(t *testing.T) {
	root := tree(map[string]string{
		"proc/self/status":          "Name:\tshoal\nRssAnon:\t    1000 kB\nRssFile:\t 7 kB\n",
		"proc/self/task/1/children": "12 13 ",
		"proc/self/task/2/children": "",
		"proc/12/status":            "RssAnon:\t  200 kB\n",
		"proc/12/task/12/children":  "14 ",
		"proc/14/status":            "RssAnon:\t  30 kB\n",
		"proc/13/status":            "Name:\tended\n",
	})
	if got := Anonymous(root); got != 1230<<10 {
		t.Errorf("%d KiB, want 1230", got>>10)
	}
	if got := Anonymous(Root()); got <= 0 {
		t.Errorf("this process has %d bytes", got)
	}
}
