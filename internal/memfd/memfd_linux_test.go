package memfd

import (
	"net"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestBothSidesSeeTheSameMemory(t *testing.T) {
	b, fd, err := New(8192)
	if err != nil {
		t.Fatal(err)
	}
	defer Unmap(b)
	ends, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	one, other := connection(t, ends[0]), connection(t, ends[1])
	if err := Pass(one, []byte("memory"), fd); err != nil {
		t.Fatal(err)
	}
	message, control := make([]byte, 16), make([]byte, 64)
	_, n, _, _, err := other.ReadMsgUnix(message, control)
	if err != nil {
		t.Fatal(err)
	}
	fds := Descriptors(control[:n])
	if len(fds) != 1 {
		t.Fatalf("received %d descriptors, want 1", len(fds))
	}
	again, err := Map(fds[0], 8192)
	CloseAll(fds)
	if err != nil {
		t.Fatal(err)
	}
	defer Unmap(again)
	b[5000] = 7
	if again[5000] != 7 {
		t.Error("one side does not see what the other wrote")
	}
}

func connection(t *testing.T, fd int) *net.UnixConn {
	t.Helper()
	f := os.NewFile(uintptr(fd), "end")
	c, err := net.FileConn(f)
	_ = f.Close() // the connection has a copy
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c.(*net.UnixConn)
}

func TestMemoryThatCouldKillItsReaderIsRefused(t *testing.T) {
	unsealed, err := unix.MemfdCreate("unsealed", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		t.Fatal(err)
	}
	defer CloseAll([]int{unsealed})
	if err := unix.Ftruncate(unsealed, 4096); err != nil {
		t.Fatal(err)
	}
	file, err := os.Create(t.TempDir() + "/file")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = file.Close() }()
	if err := file.Truncate(4096); err != nil {
		t.Fatal(err)
	}
	b, whole, err := New(4096)
	if err != nil {
		t.Fatal(err)
	}
	Unmap(b)
	defer CloseAll([]int{whole})
	for _, tt := range []struct {
		fd, size int
		want     string
	}{
		{unsealed, 4096, "not sealed"},
		{int(file.Fd()), 4096, "not sealed"},
		{whole, 4097, "memory of 4096 bytes, announced as 4097"},
		{whole, 0, "announced as 0"},
		{-1, 4096, "not sealed"},
	} {
		if b, err := Map(tt.fd, tt.size); err == nil || !strings.Contains(err.Error(), tt.want) {
			Unmap(b)
			t.Errorf("mapping %d bytes: %v, want an error with %q", tt.size, err, tt.want)
		}
	}
}
