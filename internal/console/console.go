// Package console formats text for people: it wraps lines to the width of the terminal,
// and uses color only where a terminal shows it. It knows nothing of what the text says.
package console

import (
	"io"
	"os"
	"strconv"
	"strings"
	"unicode/utf8"

	"golang.org/x/sys/unix"
)

// DefaultWidth is the number of columns if there is no terminal to ask.
const DefaultWidth = 100

// minWidth is the least number of columns that Width returns: text is unreadable in less.
const minWidth = 40

// IsTerminal reports whether w is a terminal.
func IsTerminal(w io.Writer) bool { return columns(w) >= 0 }

// Width returns the number of columns for text written to w: those that the environment
// variable COLUMNS gives, those of the terminal, or DefaultWidth.
func Width(w io.Writer) int {
	if n, err := strconv.Atoi(os.Getenv("COLUMNS")); err == nil && n > 0 {
		return max(n, minWidth)
	}
	if n := columns(w); n > 0 {
		return max(n, minWidth)
	}
	return DefaultWidth
}

// columns returns the number of columns of a terminal, 0 if it does not know them, and -1
// if w is not a terminal.
func columns(w io.Writer) int {
	f, ok := w.(*os.File)
	if !ok {
		return -1
	}
	size, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ)
	if err != nil {
		return -1
	}
	return int(size.Col)
}

// A Style is a color or weight of text.
type Style string

// Styles.
const (
	Bold   Style = "1"
	Dim    Style = "2"
	Red    Style = "31"
	Green  Style = "32"
	Yellow Style = "33"
)

// A Palette applies styles. The zero Palette applies none.
type Palette struct{ colors bool }

// PaletteOf returns a palette for text written to w. It has no colors unless w is a
// terminal that can show them, or if NO_COLOR is set to anything (https://no-color.org).
func PaletteOf(w io.Writer) Palette {
	return Palette{IsTerminal(w) && os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb"}
}

// Paint returns text in the given style.
func (p Palette) Paint(s Style, text string) string {
	if !p.colors || text == "" {
		return text
	}
	return "\x1b[" + string(s) + "m" + text + "\x1b[0m"
}

// Columns returns the number of columns that text takes, if every character takes one.
// Escape sequences of a [Palette] take none.
func Columns(text string) int {
	n := 0
	for {
		before, after, found := strings.Cut(text, "\x1b[")
		n += utf8.RuneCountInString(before)
		if !found {
			return n
		}
		_, text, _ = strings.Cut(after, "m")
	}
}

// Wrap breaks text at spaces into lines of at most width columns. The first line follows
// prefix; further lines are indented by hang spaces. A word that is longer than a line is
// not broken. Runs of spaces become one.
func Wrap(prefix, text string, width, hang int) []string {
	lines := []string{}
	line, used, empty := prefix, Columns(prefix), true
	for word := range strings.FieldsSeq(text) {
		n := Columns(word)
		if !empty && used+1+n > width {
			lines = append(lines, line)
			line, used, empty = strings.Repeat(" ", hang), hang, true
		}
		if !empty {
			line, used = line+" ", used+1
		}
		line, used, empty = line+word, used+n, false
	}
	return append(lines, strings.TrimRight(line, " "))
}
