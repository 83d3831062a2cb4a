package console

import (
	"bytes"
	"os"
	"slices"
	"testing"
)

func TestLinesBreakBetweenWords(t *testing.T) {
	for _, tt := range []struct {
		prefix, text string
		width, hang  int
		want         []string
	}{
		{"", "", 10, 2, []string{""}},
		{"a  ", "", 10, 2, []string{"a"}},
		{"", "one two three", 7, 2, []string{"one two", "  three"}},
		{"- ", "one two three", 9, 2, []string{"- one two", "  three"}},
		{"", "one  two\nthree", 100, 0, []string{"one two three"}},
		{"", "a incomprehensibilities b", 8, 0, []string{"a", "incomprehensibilities", "b"}},
		{"", "é é é", 3, 0, []string{"é é", "é"}},
		{"", "\x1b[1mone\x1b[0m two", 7, 0, []string{"\x1b[1mone\x1b[0m two"}},
	} {
		if got := Wrap(tt.prefix, tt.text, tt.width, tt.hang); !slices.Equal(got, tt.want) {
			t.Errorf("%q at %d columns: got %q, want %q", tt.prefix+tt.text, tt.width, got, tt.want)
		}
	}
}

func TestOnlyATerminalHasColors(t *testing.T) {
	file, err := os.CreateTemp(t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = file.Close() }()
	if IsTerminal(file) || IsTerminal(&bytes.Buffer{}) {
		t.Error("a file or a buffer is taken for a terminal")
	}
	if got := PaletteOf(file).Paint(Red, "text"); got != "text" {
		t.Errorf("a file is written %q", got)
	}
	if got := (Palette{colors: true}).Paint(Red, "text"); got != "\x1b[31mtext\x1b[0m" || Columns(got) != 4 {
		t.Errorf("got %q of %d columns", got, Columns(got))
	}
}

func TestTheWidthComesFromTheEnvironment(t *testing.T) {
	for value, want := range map[string]int{"": DefaultWidth, "120": 120, "80": 80, "3": minWidth, "wide": DefaultWidth, "-1": DefaultWidth} {
		t.Setenv("COLUMNS", value)
		if got := Width(&bytes.Buffer{}); got != want {
			t.Errorf("COLUMNS=%q: got %d columns, want %d", value, got, want)
		}
	}
}
