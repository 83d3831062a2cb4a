package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// otherFlags are flags of other programs that the documents name in running text.
var otherFlags = map[string]bool{"--build-arg": true, "--grpc-use-ssl": true, "--trace-": true, "--ssl-": true}

var (
	spanOfFlag = regexp.MustCompile("`(--[a-z][a-z0-9-]*)[^`]*`")
	shoalLine  = regexp.MustCompile(`^(?:\$ )?(?:bin/)?shoal [a-z].*`)
	anyFlag    = regexp.MustCompile(`(?:^|[ \[])(--[a-z][a-z0-9-]*)`)
)

func TestTheDocumentsNameFlagsThatExist(t *testing.T) {
	known := map[string]bool{"--help": true}
	var add func(*cobra.Command)
	add = func(cmd *cobra.Command) {
		cmd.Flags().VisitAll(func(f *pflag.Flag) { known["--"+f.Name] = true })
		for _, sub := range cmd.Commands() {
			add(sub)
		}
	}
	add(newRootCommand())
	for name := range tritonFlags {
		known["--"+name] = true
	}
	documents, err := filepath.Glob("../../docs/*/*.md")
	if err != nil {
		t.Fatal(err)
	}
	checked := 0
	for _, file := range append(documents, "../../README.md", "../../packaging/README.md") {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for i, line := range strings.Split(string(text), "\n") {
			if strings.HasPrefix(line, "|") {
				continue // tables also have flags of other programs, and say so
			}
			found := spanOfFlag.FindAllStringSubmatch(line, -1)
			if shoalLine.MatchString(line) {
				found = append(found, anyFlag.FindAllStringSubmatch(line, -1)...)
			}
			for _, f := range found {
				checked++
				if !known[f[1]] && !otherFlags[f[1]] {
					t.Errorf("%s:%d: shoal has no flag %s", filepath.Base(file), i+1, f[1])
				}
			}
		}
	}
	if checked < 100 {
		t.Errorf("only %d flags were found in the documents", checked)
	}
}
