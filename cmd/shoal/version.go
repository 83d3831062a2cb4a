package main

import (
	"fmt"
	"io"
	"runtime"
	"runtime/debug"
	"strings"

	"github.com/spf13/cobra"

	"github.com/shoal-serving/shoal/internal/engine/onnx/onnxruntime"
)

// newVersionCommand returns `shoal version`.
func newVersionCommand() *cobra.Command {
	var library string
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Print the versions of Shoal, Go and ONNX Runtime",
		Args:  arguments(0, 0, ""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			b := readBuild(library)
			if !asJSON {
				_, err := io.WriteString(cmd.OutOrStdout(), b.String())
				return err
			}
			return writeJSON(cmd.OutOrStdout(), b)
		},
	}
	f := cmd.Flags()
	f.StringVar(&library, "onnxruntime-library", "", "`path` of the ONNX Runtime library, as for shoal serve")
	f.BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

// A build is what this program was built from and runs with.
type build struct {
	Version  string      `json:"version"`
	Commit   string      `json:"commit,omitempty"` // "" if it was built outside of a repository
	Time     string      `json:"commit_time,omitempty"`
	Modified bool        `json:"modified,omitempty"` // there were changes that are not in the commit
	Go       string      `json:"go"`
	Platform string      `json:"platform"`
	ONNX     onnxLibrary `json:"onnxruntime"`
}

type onnxLibrary struct {
	Version   string   `json:"version,omitempty"`
	Library   string   `json:"library,omitempty"`
	Providers []string `json:"providers,omitempty"`
	Error     string   `json:"error,omitempty"` // why it cannot be opened
}

// readBuild describes this program, and the ONNX Runtime library that it would open.
func readBuild(library string) build {
	b := build{Version: version, Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH, ONNX: readLibrary(library)}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return b
	}
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			b.Commit = s.Value
		case "vcs.time":
			b.Time = s.Value
		case "vcs.modified":
			b.Modified = s.Value == "true"
		}
	}
	return b
}

func readLibrary(library string) onnxLibrary {
	path, err := onnxruntime.Find(library)
	if err != nil {
		return onnxLibrary{Error: err.Error()}
	}
	r, err := onnxruntime.Open(onnxruntime.Options{Library: path})
	if err != nil {
		return onnxLibrary{Library: path, Error: err.Error()}
	}
	defer r.Close()
	return onnxLibrary{Version: r.Version(), Library: path, Providers: r.Providers()}
}

// String returns a line for each part.
func (b build) String() string {
	commit := "unknown"
	if b.Commit != "" {
		commit = b.Commit + " " + b.Time
		if b.Modified {
			commit += " (modified)"
		}
	}
	onnx := "not available: " + b.ONNX.Error
	if b.ONNX.Error == "" {
		onnx = fmt.Sprintf("%s (%s) at %s", b.ONNX.Version, strings.Join(b.ONNX.Providers, ", "), b.ONNX.Library)
	}
	return fmt.Sprintf("Shoal %s\nCommit: %s\nGo: %s %s\nONNX Runtime: %s\n", b.Version, commit, b.Go, b.Platform, onnx)
}
