// Package plot draws charts as SVG, to stand in a page that has the style for
// them, and has what every drawing needs: lengths, texts and round steps.
//
// A chart is made of classes, never of colours: the page says how they look, in the
// light and in the dark.
package plot

import (
	"encoding/xml"
	"math"
	"strconv"
	"strings"
)

// Px writes a length. A tenth of a pixel is finer than anybody sees.
func Px(v float64) string { return strings.TrimSuffix(strconv.FormatFloat(v, 'f', 1, 64), ".0") }

// Escape makes text fit to stand in an element or an attribute.
func Escape(text string) string {
	var out strings.Builder
	if err := xml.EscapeText(&out, []byte(text)); err != nil {
		panic(err) // a builder takes everything
	}
	return out.String()
}

// TextWidth estimates how wide a text is. The font is not known in advance, so it assumes
// a wide one.
func TextWidth(text string, size float64) (width float64) {
	for _, char := range text {
		switch {
		case strings.ContainsRune("iljtfI.,:;'|!()[] ", char):
			width += 0.36
		case strings.ContainsRune("mwMW", char):
			width += 0.95
		case char >= 0x2e80: // East Asian scripts, and pictures
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
