// Package plot draws charts as SVG for pages that provide the style, and has helpers for
// other drawings: lengths, text widths and round steps.
//
// Elements of a chart have classes and no colours: the style sheet of the page determines
// how they look in light and dark mode.
package plot

import (
	"encoding/xml"
	"math"
	"strconv"
	"strings"
)

// Px formats a length with one decimal place.
func Px(v float64) string { return strings.TrimSuffix(strconv.FormatFloat(v, 'f', 1, 64), ".0") }

// Escape escapes text for an element or an attribute.
func Escape(text string) string {
	var out strings.Builder
	if err := xml.EscapeText(&out, []byte(text)); err != nil {
		panic(err) // writing to a strings.Builder never fails
	}
	return out.String()
}

// TextWidth estimates the width of a text. The font is not known, so it assumes a wide
// one.
func TextWidth(text string, size float64) (width float64) {
	for _, char := range text {
		switch {
		case strings.ContainsRune("iljtfI.,:;'|!()[] ", char):
			width += 0.36
		case strings.ContainsRune("mwMW", char):
			width += 0.95
		case char >= 0x2e80: // East Asian scripts, and emoji
			width++
		case char >= 'A' && char <= 'Z':
			width += 0.7
		default:
			width += 0.61
		}
	}
	return width * size
}

// Step returns a round number that is at least v.
func Step(v float64) float64 {
	if v <= 0 {
		return 1
	}
	power := math.Pow(10, math.Floor(math.Log10(v)))
	for _, n := range []float64{1, 2, 2.5, 5} {
		if n*power >= v {
			return n * power
		}
	}
	return 10 * power
}
