package render

import "strings"

// A canvas is a rectangle of characters to draw on. Lines that meet are joined.
type canvas struct {
	width int
	rows  [][]square
}

type square struct {
	char  rune
	sides sides // of a line, where there is no char
}

// sides are the directions in which the line in a cell continues.
type sides uint8

const (
	up sides = 1 << iota
	down
	left
	right
)

var lines = map[sides]rune{
	up | down: '│', left | right: '─', up: '│', down: '│', left: '─', right: '─',
	down | right: '┌', down | left: '┐', up | right: '└', up | left: '┘',
	up | down | right: '├', up | down | left: '┤', left | right | down: '┬', left | right | up: '┴',
	up | down | left | right: '┼',
}

// row returns a row, and adds rows up to it. Drawing beyond the last column has no
// effect.
func (c *canvas) row(y int) []square {
	for len(c.rows) <= y {
		c.rows = append(c.rows, make([]square, c.width))
	}
	return c.rows[y]
}

// cut sets the height of the canvas.
func (c *canvas) cut(height int) {
	c.row(height)
	c.rows = c.rows[:height]
}

func (c *canvas) line(x, y int, s sides) {
	if row := c.row(y); x >= 0 && x < c.width {
		row[x].sides |= s
	}
}

// box draws the frame of a rectangle with corners in the given cells.
func (c *canvas) box(x1, y1, x2, y2 int) {
	for x := x1; x <= x2; x++ {
		along := left | right
		switch x {
		case x1:
			along = right
		case x2:
			along = left
		}
		c.line(x, y1, along)
		c.line(x, y2, along)
	}
	for y := y1; y <= y2; y++ {
		along := up | down
		switch y {
		case y1:
			along = down
		case y2:
			along = up
		}
		c.line(x1, y, along)
		c.line(x2, y, along)
	}
}

// write writes text over the existing contents.
func (c *canvas) write(x, y int, text string) {
	row := c.row(y)
	for _, char := range text {
		n := columns(char)
		if x >= 0 && x+n <= c.width {
			row[x].char = char
			for i := 1; i < n; i++ {
				row[x+i].char = covered
			}
		}
		x += n
	}
}

// covered marks a cell that the character to the left covers.
const covered = -1

// free reports whether a range of a row, and one cell on either side, is empty.
func (c *canvas) free(x, y, length int) bool {
	row := c.row(y)
	if x < 0 || x+length > c.width {
		return false
	}
	for i := max(0, x-1); i < min(c.width, x+length+1); i++ {
		if row[i] != (square{}) {
			return false
		}
	}
	return true
}

// String returns the drawing without trailing spaces.
func (c *canvas) String() string {
	var out strings.Builder
	for _, row := range c.rows {
		var text strings.Builder
		for _, cell := range row {
			switch {
			case cell.char == covered:
			case cell.char != 0:
				text.WriteRune(cell.char)
			case cell.sides != 0:
				text.WriteRune(lines[cell.sides])
			default:
				text.WriteByte(' ')
			}
		}
		out.WriteString(strings.TrimRight(text.String(), " "))
		out.WriteByte('\n')
	}
	return out.String()
}

// columns returns the width of a character in a terminal: East Asian characters and emoji
// are two columns wide.
func columns(char rune) int {
	for _, wide := range [][2]rune{{0x1100, 0x115f}, {0x2e80, 0xa4cf}, {0xac00, 0xd7a3}, {0xf900, 0xfaff}, {0xfe30, 0xfe6f}, {0xff00, 0xff60}, {0xffe0, 0xffe6}, {0x1f300, 0x1faff}, {0x20000, 0x3fffd}} {
		if char >= wide[0] && char <= wide[1] {
			return 2
		}
	}
	return 1
}

func width(text string) (n int) {
	for _, char := range text {
		n += columns(char)
	}
	return n
}

// clip shortens text to the given width, and marks the cut with its last character.
func clip(text string, most int) string { return clipBy(text, float64(most), columnsOf) }

// wrap breaks text into lines of the given width, at spaces if possible.
func wrap(text string, most int) []string { return wrapBy(text, float64(most), columnsOf) }

func columnsOf(text string) float64 { return float64(width(text)) }

// clipBy is clip for any measure of width.
func clipBy(text string, most float64, width func(string) float64) string {
	if width(text) <= most {
		return text
	}
	if head := fitting(text, most-width("…"), width); head != "" {
		return head + "…"
	}
	return ""
}

// wrapBy is wrap for any measure of width.
func wrapBy(text string, most float64, width func(string) float64) []string {
	var out []string
	for paragraph := range strings.SplitSeq(text, "\n") {
		line := ""
		for word := range strings.FieldsSeq(paragraph) {
			if line != "" && width(line+" "+word) <= most {
				line += " " + word
				continue
			}
			if line != "" {
				out = append(out, line)
			}
			for head := fitting(word, most, width); head != word && head != ""; head = fitting(word, most, width) {
				out = append(out, head)
				word = word[len(head):]
			}
			line = word
		}
		out = append(out, line)
	}
	return out
}

// fitting returns the longest prefix of text that is not wider than most.
func fitting(text string, most float64, width func(string) float64) string {
	fits := 0
	for i := range text {
		if width(text[:i]) > most {
			return text[:fits]
		}
		fits = i
	}
	if width(text) > most {
		return text[:fits]
	}
	return text
}
