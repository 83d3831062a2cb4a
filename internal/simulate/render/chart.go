package render

import (
	"fmt"
	"math"
	"strconv"

	"github.com/shoal-serving/shoal/internal/plot"
)

// A chart is an area with axes for line plots.
type chart struct {
	left, top, width, height float64
	mostX, mostY             float64
}

func (c chart) x(v float64) float64 { return c.left + c.width*v/c.mostX }
func (c chart) y(v float64) float64 { return c.top + c.height - c.height*v/c.mostY }

// charts draws throughput and latency against the varied parameter, side by side, with
// one line for each setting.
func (p *picture) charts() {
	p.key()
	const gap, axis = 70, 46
	width := (pictureWidth - 2*edge - gap - 2*axis) / 2
	top := p.y + 52
	for i, m := range p.measures()[:2] {
		c := chart{left: edge + axis + float64(i)*(width+gap+axis), top: top, width: width, height: 240}
		p.chart(c, m)
	}
	p.y = top + 240 + 52
	p.line(edge, p.y, pictureWidth-edge, p.y, `class="rule"`)
}

// key draws the legend.
func (p *picture) key() {
	p.y += 24
	x := edge
	for i, g := range p.groups() {
		width := 34 + plot.TextWidth(g.setting, 14)
		if x > edge && x+width > pictureWidth-edge {
			x = edge
			p.y += 22
		}
		p.line(x, p.y-5, x+20, p.y-5, fmt.Sprintf(`stroke="%s" stroke-width="4" stroke-linecap="round"`, palette[i%len(palette)]))
		p.text(x+28, p.y, `font-size="14"`, g.setting)
		x += width + 22
	}
}

func (p *picture) chart(c chart, m measure) {
	points := p.points()
	c.mostX = points[len(points)-1]
	for _, run := range p.Runs {
		c.mostY = max(c.mostY, m.of(run))
	}
	step := plot.Step(c.mostY / 5)
	c.mostY = max(step, math.Ceil(c.mostY/step)*step)
	p.text(c.left-40, c.top-14, `class="name"`, m.name)
	for i := range int(math.Round(c.mostY/step)) + 1 {
		v := float64(i) * step
		p.line(c.left, c.y(v), c.left+c.width, c.y(v), `class="grid"`)
		p.text(c.left-8, c.y(v)+4, `class="soft" font-size="12" text-anchor="end"`, trimZeros(strconv.FormatFloat(v, 'f', 3, 64)))
	}
	end := -1e9 // end of the last label, so that labels do not touch
	for _, point := range points {
		label := perSecond(point)
		if half := plot.TextWidth(label, 12) / 2; c.x(point)-half > end+6 {
			p.text(c.x(point), c.top+c.height+18, `class="soft" font-size="12" text-anchor="middle"`, label)
			end = c.x(point) + half
		}
	}
	p.text(c.left+c.width, c.top+c.height+36, `class="soft" font-size="12" text-anchor="end"`, p.Varied)
	for i, g := range p.groups() {
		p.curve(c, m, g, palette[i%len(palette)])
	}
}

func (p *picture) curve(c chart, m measure, g group, colour string) {
	p.body.WriteString(`<polyline fill="none" stroke-width="2.5" stroke-linejoin="round" stroke="` + colour + `" points="`)
	for _, run := range g.runs {
		fmt.Fprintf(&p.body, "%s,%s ", plot.Px(c.x(run.Point)), plot.Px(c.y(m.of(run))))
	}
	p.body.WriteString(`"/>` + "\n")
	for _, run := range g.runs {
		fmt.Fprintf(&p.body, `<circle cx="%s" cy="%s" r="3.6" fill="%s"><title>%s</title></circle>`+"\n", plot.Px(c.x(run.Point)), plot.Px(c.y(m.of(run))), colour,
			plot.Escape(fmt.Sprintf("%s: %s %s", p.nameOf(run), threeDigits(m.of(run)), m.name)))
	}
}
