package plot

import (
	"bytes"
	"fmt"
	"math"
	"slices"
)

// A Chart draws lines and bars over two axes.
type Chart struct {
	ID            string // unique in the page
	Title, Desc   string // for screen readers
	Width, Height float64
	Right         float64 // width for the names of lines; 0 means that they are not shown
	X, Y          Axis
	Lines         []Line
	Bars          []Bar
	Slices        []Slice
}

// A Line connects points. A point whose Y is NaN leaves a gap.
type Line struct {
	Name   string // shown to the right of its end if Chart.Right is set
	Class  string
	Points []Point
	Loose  bool // draw only the points
	Plain  bool // draw only the line
}

// A Point is a value with an optional tooltip and name.
type Point struct {
	X, Y  float64
	Title string // tooltip
	Name  string // shown above it
}

// A Bar is a rectangle on the X axis between two values.
type Bar struct {
	From, To, Y float64
	Class       string
}

// A Slice is a part of the chart between two values of X that has a tooltip.
type Slice struct {
	From, To float64
	Title    string
}

// Dimensions of a chart, in pixels.
const (
	textSize   = 12.0
	leftRoom   = 62.0
	topRoom    = 26.0
	bottomRoom = 42.0
	lineHeight = 15.0
)

// SVG draws the chart.
func (c Chart) SVG() string {
	p := &pen{Chart: c}
	fmt.Fprintf(&p.out, `<svg class="chart" role="img" width="%s" height="%s" viewBox="0 0 %s %s" aria-labelledby="%s-title %s-desc">`+"\n",
		Px(c.Width), Px(c.Height), Px(c.Width), Px(c.Height), Escape(c.ID), Escape(c.ID))
	fmt.Fprintf(&p.out, `<title id="%s-title">%s</title><desc id="%s-desc">%s</desc>`+"\n", Escape(c.ID), Escape(c.Title), Escape(c.ID), Escape(c.Desc))
	p.axes()
	for _, b := range c.Bars {
		p.bar(b)
	}
	for _, l := range c.Lines {
		p.line(l)
	}
	p.names()
	for _, s := range c.Slices {
		x := p.x(s.From)
		fmt.Fprintf(&p.out, `<rect class="slice" x="%s" y="%s" width="%s" height="%s"><title>%s</title></rect>`+"\n",
			Px(x), Px(topRoom), Px(max(1, p.x(s.To)-x)), Px(p.bottom()-topRoom), Escape(s.Title))
	}
	p.out.WriteString("</svg>")
	return p.out.String()
}

type pen struct {
	Chart
	out   bytes.Buffer
	marks [][2]float64 // positions of the names of points
}

func (p *pen) right() float64  { return p.Width - max(p.Right, 10) }
func (p *pen) bottom() float64 { return p.Height - bottomRoom }

func (p *pen) x(v float64) float64 { return leftRoom + (p.right()-leftRoom)*p.X.at(v) }
func (p *pen) y(v float64) float64 { return p.bottom() - (p.bottom()-topRoom)*p.Y.at(v) }

func (p *pen) axes() {
	p.text(0, textSize, "name", "start", p.Y.Name)
	end := math.Inf(1) // end of the previous label, so that labels do not touch
	for i, t := range p.Y.Ticks {
		y := p.y(t.Value)
		class := "grid"
		if i == 0 {
			class = "base"
		}
		fmt.Fprintf(&p.out, `<line class="%s" x1="%s" y1="%s" x2="%s" y2="%s"/>`+"\n", class, Px(leftRoom), Px(y), Px(p.right()), Px(y))
		if y+lineHeight <= end {
			p.text(leftRoom-8, y+4, "tick", "end", t.Label)
			end = y
		}
	}
	end = math.Inf(-1)
	for _, t := range p.X.Ticks {
		x, half := p.x(t.Value), TextWidth(t.Label, textSize)/2
		if x-half <= end+6 || x+half > p.Width {
			continue
		}
		fmt.Fprintf(&p.out, `<line class="base" x1="%s" y1="%s" x2="%s" y2="%s"/>`+"\n", Px(x), Px(p.bottom()), Px(x), Px(p.bottom()+4))
		p.text(x, p.bottom()+18, "tick", "middle", t.Label)
		end = x + half
	}
	p.text(p.right(), p.Height-6, "name", "end", p.X.Name)
}

func (p *pen) bar(b Bar) {
	x, y := p.x(b.From), p.y(b.Y)
	fmt.Fprintf(&p.out, `<rect class="bar %s" x="%s" y="%s" width="%s" height="%s"/>`+"\n",
		Escape(b.Class), Px(x), Px(y), Px(max(1, p.x(b.To)-x-1)), Px(max(1, p.bottom()-y)))
}

func (p *pen) line(l Line) {
	fmt.Fprintf(&p.out, `<g class="line %s">`, Escape(l.Class))
	if !l.Loose {
		p.path(l.Points)
	}
	for i, at := range l.Points {
		// A point between two gaps is drawn even in a plain line, where it would be invisible.
		if math.IsNaN(at.Y) || l.Plain && !isolated(l.Points, i) {
			continue
		}
		radius := 3.6
		if l.Loose || l.Plain {
			radius = 2
		}
		fmt.Fprintf(&p.out, `<circle cx="%s" cy="%s" r="%s"><title>%s</title></circle>`, Px(p.x(at.X)), Px(p.y(at.Y)), Px(radius), Escape(at.Title))
		p.mark(p.x(at.X), p.y(at.Y)-9, at.Name)
	}
	p.out.WriteString("</g>\n")
}

// mark writes the name of a point, unless it would overlap another one.
func (p *pen) mark(x, y float64, name string) {
	near := func(other [2]float64) bool {
		return math.Abs(other[0]-x) < TextWidth(name, textSize)+4 && math.Abs(other[1]-y) < lineHeight
	}
	if name == "" || slices.ContainsFunc(p.marks, near) {
		return
	}
	p.marks = append(p.marks, [2]float64{x, y})
	p.text(x, y, "mark", "middle", name)
}

// isolated reports whether a point has gaps on both sides.
func isolated(points []Point, i int) bool {
	return (i == 0 || math.IsNaN(points[i-1].Y)) && (i == len(points)-1 || math.IsNaN(points[i+1].Y))
}

func (p *pen) path(points []Point) {
	p.out.WriteString(`<path d="`)
	command := "M"
	for _, at := range points {
		if math.IsNaN(at.Y) {
			command = "M"
			continue
		}
		fmt.Fprintf(&p.out, "%s%s %s", command, Px(p.x(at.X)), Px(p.y(at.Y)))
		command = "L"
	}
	p.out.WriteString(`"/>`)
}

// names writes the names of the lines to the right of their ends. Names that would overlap
// are moved apart, and some are omitted if there are too many.
func (p *pen) names() {
	if p.Right == 0 {
		return
	}
	type label struct {
		y           float64
		text, class string
	}
	var labels []label
	for _, l := range p.Lines {
		for _, at := range slices.Backward(l.Points) {
			if l.Name != "" && !math.IsNaN(at.Y) {
				labels = append(labels, label{p.y(at.Y) + 4, l.Name, l.Class})
				break
			}
		}
	}
	for room := int((p.bottom() - topRoom) / lineHeight); len(labels) > room; {
		labels = slices.Delete(labels, len(labels)/2, len(labels)/2+1)
	}
	slices.SortStableFunc(labels, func(a, b label) int { return int(math.Copysign(1, a.y-b.y)) })
	for i := 1; i < len(labels); i++ {
		labels[i].y = max(labels[i].y, labels[i-1].y+lineHeight)
	}
	// Names that were moved below the axis move back up, and push those above them.
	for i, lowest := len(labels)-1, p.bottom()+4; i >= 0; i-- {
		labels[i].y = min(labels[i].y, lowest)
		lowest = labels[i].y - lineHeight
	}
	for _, l := range labels {
		p.text(p.right()+9, l.y, "end "+l.class, "start", l.text)
	}
}

func (p *pen) text(x, y float64, class, anchor, text string) {
	fmt.Fprintf(&p.out, `<text class="%s" x="%s" y="%s" text-anchor="%s">%s</text>`+"\n", Escape(class), Px(x), Px(y), anchor, Escape(text))
}
