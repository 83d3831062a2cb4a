package script

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// echo answers with its input, and remembers how often it was asked. The word
// "gap" becomes a blank line, and "nothing" becomes no output.
func echo() func([]string) string {
	asked := 0
	return func(lines []string) string {
		asked++
		out := strings.Join(lines, "\n")
		if out == "count" {
			return strings.Repeat("I", asked)
		}
		return strings.NewReplacer("gap", "", "nothing", "").Replace(out)
	}
}

func TestScripts(t *testing.T) {
	Run(t, "testdata/*.txt", func(*testing.T) func([]string) string { return echo() })
}

func TestAWrongExpectationIsShownAsADiffAtItsLine(t *testing.T) {
	_, mismatches, err := run("# Three lines.\na\nb\nc\n----\na\nx\nc\n\nd\n----\nd\n", echo())
	if err != nil {
		t.Fatal(err)
	}
	want := "5: the output is not as expected (- want, + got):\n  a\n- x\n+ b\n  c\n"
	if len(mismatches) != 1 || mismatches[0] != want {
		t.Errorf("got %q, want the one message %q", mismatches, want)
	}
}

func TestRewritingKeepsCommentsAndMendsTheOutput(t *testing.T) {
	tests := []struct{ name, before, after string }{
		{"wrong", "# Why.\na\n----\nb\n\n# The end.\n", "# Why.\na\n----\na\n\n# The end.\n"},
		{"new", "a\n----", "a\n----\na\n"},
		{"silent", "nothing\n----\nx\n\na\n----\n", "nothing\n----\n\na\n----\na\n"},
		{"grown a blank line", "a\ngap\nb\n----\n", "a\ngap\nb\n----\n----\na\n\nb\n----\n----\n"},
		{"lost its blank line", "a\n----\n----\na\n\nb\n----\n----\n\nc\n----\n", "a\n----\na\n\nc\n----\nc\n"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			once, _, err := run(test.before, echo())
			if err != nil {
				t.Fatal(err)
			}
			if once != test.after {
				t.Errorf("rewritten, it reads:\n%s\nwant:\n%s", once, test.after)
			}
			twice, mismatches, err := run(once, echo())
			if err != nil || len(mismatches) > 0 || twice != once {
				t.Errorf("rewritten again, it reads:\n%s\nwith mismatches %q and error %v; want no change", twice, mismatches, err)
			}
		})
	}
}

func TestAScriptThatCannotBeReadSaysWhere(t *testing.T) {
	tests := []struct{ name, text, want string }{
		{"no output", "a\n----\na\n\nb\n", `5: the input has no output: add a line ---- after "b"`},
		{"open", "a\n----\n----\na\n", "3: output that begins with two lines ---- must end with two"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			if _, _, err := run(test.text, echo()); err == nil || err.Error() != test.want {
				t.Errorf("got %v, want %s", err, test.want)
			}
		})
	}
}

func TestOutputThatLooksLikeAScriptIsRefused(t *testing.T) {
	_, _, err := run("a\n----\n", func([]string) string { return "x\n----\ny" })
	want := "2: the output contains a line ----, which a script cannot represent: print something else"
	if err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
}

func TestRewriteChangesTheFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "new.txt")
	if err := os.WriteFile(file, []byte("a\n----\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	before := *rewrite
	*rewrite = true
	t.Cleanup(func() { *rewrite = before })
	runFile(t, file, echo())
	if got, err := os.ReadFile(file); err != nil || string(got) != "a\n----\na\n" {
		t.Errorf("the file reads %q (%v)", got, err)
	}
}

func FuzzRewritingTwiceChangesNothing(f *testing.F) {
	f.Add("# Why.\na\ngap\nb\n----\n----\na\n\nb\n----\n----\n\n\nc\n----\nc\n# End.\n")
	f.Fuzz(func(t *testing.T, text string) {
		once, _, err := run(text, echo())
		if err != nil {
			return
		}
		twice, mismatches, err := run(once, echo())
		if err != nil || len(mismatches) > 0 || twice != once {
			t.Errorf("once: %q\ntwice: %q\nmismatches %q, error %v", once, twice, mismatches, err)
		}
	})
}
