package servertest

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// An Envoy is one of a cell, with the file that users start from: deploy/envoy/envoy.yaml.
type Envoy struct {
	Proxy, Admin string   // where it listens
	XDS          []string // where cells listen
	// Adapt changes the file before addresses are put into it; nil leaves it as it is.
	Adapt func(template string) string
	Flags []string
}

// EnvoyBinary returns the path of Envoy, and skips the test if there is none.
func EnvoyBinary(t *testing.T) string {
	t.Helper()
	path := filepath.Join(Root, "bin", "envoy")
	if _, err := os.Stat(path); err != nil {
		t.Skip("there is no bin/envoy: run tools/get-envoy")
	}
	return path
}

// Start runs it until the test ends.
func (e *Envoy) Start(t *testing.T) *exec.Cmd {
	t.Helper()
	template, err := os.ReadFile(filepath.Join(Root, "deploy", "envoy", "envoy.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	text := string(template)
	if e.Adapt != nil {
		text = e.Adapt(text)
	}
	port := func(address string) string { return "port_value: " + address[strings.LastIndex(address, ":")+1:] }
	entry := "              - endpoint: {address: {socket_address: {address: 127.0.0.1, port_value: 18000}}}\n"
	var entries strings.Builder
	for _, address := range e.XDS {
		entries.WriteString(strings.Replace(entry, "port_value: 18000", port(address), 1))
	}
	for old, replacement := range map[string]string{entry: entries.String(), "port_value: 8080": port(e.Proxy), "port_value: 9901": port(e.Admin)} {
		if strings.Count(text, old) != 1 {
			t.Fatalf("the template does not have %q once", old)
		}
		text = strings.Replace(text, old, replacement, 1)
	}
	file := filepath.Join(t.TempDir(), "envoy.yaml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(EnvoyBinary(t), append(e.Flags, "-c", file, "--concurrency", "1", "-l", "warning")...)
	cmd.Stderr = t.Output()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { Kill(cmd) })
	return cmd
}
