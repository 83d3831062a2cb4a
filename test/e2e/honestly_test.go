//go:build e2e

package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/shoal-serving/shoal/test/servertest"
)

// TestMeasuringHonestlyIsDoneAsWritten runs the commands of that section of
// docs/how-to/benchmark.md, one after the other in a folder that has the examples in it. They
// are as they are written but for the addresses and, unless the test is strict, for
// windows that are short and need not agree.
func TestMeasuringHonestlyIsDoneAsWritten(t *testing.T) {
	page, err := os.ReadFile(servertest.Root + "/docs/how-to/benchmark.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, found := strings.Cut(string(page), "\n## How to measure honestly\n")
	if !found {
		t.Fatal("docs/how-to/benchmark.md has no section on how to measure honestly")
	}
	section, _, _ = strings.Cut(section, "\n## ")
	blocks := shellBlocks(section)
	// What each prints, after the first, which starts the server.
	wants := []string{
		"Concurrency: 16, throughput: ", "Request Rate: 1300, throughput: ", "Request count: 12\n", "\nreal\t", "together",
	}
	if len(blocks) != 1+len(wants) || served.FindStringSubmatch(blocks[0]) == nil {
		t.Fatalf("the section has %d blocks of commands, want one that serves and %d more", len(blocks), len(wants))
	}
	s := servertest.Start(t, servertest.Root+"/"+served.FindStringSubmatch(blocks[0])[1])
	top, err := filepath.Abs(servertest.Root)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := os.Symlink(top+"/examples", dir+"/examples"); err != nil {
		t.Fatal(err)
	}
	fit := strings.NewReplacer(
		"localhost:8000", strings.TrimPrefix(s.HTTP, "http://"), "localhost:8001", s.GRPC,
		"shoal bench -m", servertest.StrictOr("shoal bench -m", "shoal bench -p 100 -s 1000000 -m"))
	for i, want := range wants {
		cmd := exec.CommandContext(t.Context(), "bash", "-euo", "pipefail", "-c", fit.Replace(blocks[i+1]))
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), "PATH="+top+"/bin:"+os.Getenv("PATH"))
		if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), want) {
			t.Errorf("%s\nends with %v:\n%s\nwant %q in it", blocks[i+1], err, out, want)
		}
	}
}
