package servertest

import (
	"fmt"
	"net"
	"os/exec"
	"testing"
)

// FreePort returns a TCP port that is free now.
func FreePort(t *testing.T) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }() // it has accepted nothing
	return l.Addr().(*net.TCPAddr).Port
}

// FreeAddress returns an address at which nothing listens now.
func FreeAddress(t *testing.T) string {
	t.Helper()
	return fmt.Sprintf("127.0.0.1:%d", FreePort(t))
}

// RunTool runs a server until the test ends, and returns when it listens.
func RunTool(t *testing.T, address, program string, args ...string) {
	t.Helper()
	cmd := exec.Command(program, args...)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { Kill(cmd) })
	Eventually(t, program+" listens", func() bool {
		c, err := net.Dial("tcp", address)
		if err == nil {
			_ = c.Close()
		}
		return err == nil
	})
}

// Kill ends a process, and returns when it has ended.
func Kill(cmd *exec.Cmd) {
	_ = cmd.Process.Kill() // it may have ended by itself
	_ = cmd.Wait()         // it was killed
}
