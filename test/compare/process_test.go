package main

import (
	"os"
	"path/filepath"
	"testing"
	"time"
)

func TestAServerEndsWithAllThatItStarted(t *testing.T) {
	folder := t.TempDir()
	// The one behind setsid leaves the session, and is found as a descendant.
	p, err := start([]string{"sh", "-c", "sleep 600 & setsid sleep 601 & wait"}, nil, folder, filepath.Join(folder, "log"))
	if err != nil {
		t.Fatal(err)
	}
	var all []member
	for end := time.Now().Add(10 * time.Second); len(all) < 3 && time.Now().Before(end); {
		time.Sleep(10 * time.Millisecond)
		all = p.members()
	}
	if len(all) != 3 {
		t.Errorf("got %d processes, want the shell and its two", len(all))
	}
	if p.memory() == 0 {
		t.Error("got no memory, want that of three processes")
	}
	p.stop()
	if living(all) {
		t.Errorf("%v still live", all)
	}
}

func TestTheSizeOfAFolderIsThatOfItsFiles(t *testing.T) {
	folder := t.TempDir()
	for _, name := range []string{"a", "b"} {
		if err := os.WriteFile(filepath.Join(folder, name), make([]byte, 1000), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(folder, link); err != nil {
		t.Fatal(err)
	}
	if got, err := sizeOf(link, filepath.Join(folder, "a")); got != 3000 || err != nil {
		t.Errorf("got %d, %v, want 3000", got, err)
	}
}
