#!/usr/bin/env python3
"""Draws the charts of the README and of docs/lab/charts.md from docs/lab/figures/*.json.

    python3 tools/docs/charts.py [DIR]

DIR is docs/pictures unless given. The same figures give the same bytes.
"""

import json
import math
import pathlib
import sys
from xml.sax.saxutils import escape

ROOT = pathlib.Path(__file__).resolve().parents[2]
FIGURES = ROOT / "docs" / "lab" / "figures"
SHADES = {1: "#9fd8d1", 4: "#4db6ac", 8: "#4db6ac", 16: "#00897b", 32: "#00897b", 64: "#004d40"}
OURS, OTHERS = "#00897b", "#b0bec5"


class Picture:
    """An SVG with a light background, so that it can be read on dark pages, too."""

    def __init__(self, width, height, title):
        self.parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
            f'height="{height}" role="img" font-family="system-ui, sans-serif" font-size="13" fill="#263238">',
            f"<title>{escape(title)}</title>",
            f'<rect width="{width}" height="{height}" rx="8" fill="#fafafa"/>',
        ]

    def text(self, x, y, text, anchor="start", size=None, weight=None, fill=None):
        more = "".join(f' {k}="{v}"' for k, v in (("font-size", size), ("font-weight", weight), ("fill", fill)) if v)
        self.parts.append(f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{more}>{escape(text)}</text>')

    def line(self, x1, y1, x2, y2, stroke="#cfd8dc", width=1):
        self.parts.append(
            f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{stroke}" stroke-width="{width}"/>')

    def dot(self, x, y, fill, tip):
        self.parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="5" fill="{fill}"><title>{escape(tip)}</title></circle>')

    def bar(self, x, y, width, height, fill):
        self.parts.append(f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" rx="2" fill="{fill}"/>')

    def svg(self):
        return "\n".join([*self.parts, "</svg>", ""])


def figures(name):
    return json.loads((FIGURES / f"{name}.json").read_text())


def untouched():
    """An unconfigured model against the best explicit settings, and against Triton."""
    best, compared = figures("untouched")["cells"], figures("compare")["cells"]
    rates = {(c["model"], c["clients"], c["server"]): c["per_second"] for c in compared if c["protocol"] == "HTTP"}
    triton = [
        {"model": model, "clients": clients, "ratio": rate / rates[model, clients, "Triton 2.51"]}
        for (model, clients, server), rate in rates.items() if server == "Shoal untouched"
    ]
    picture = Picture(800, 330, "Throughput of unconfigured models relative to explicit settings and to Triton")
    panels = [
        (130, 250, "best explicit settings = 1", best, (0.5, 0.7, 1, 1.5)),
        (510, 260, "Triton 2.51 = 1", triton, (0.7, 1, 2, 4)),
    ]
    picture.text(20, 28, "Throughput of a model without any configuration", size=16, weight=600)
    for left, width, title, cells, ticks in panels:
        panel(picture, left, width, title, cells, ticks)
    picture.text(130, 312, "clients:", size=12)
    for i, (names, shade) in enumerate((("1", SHADES[1]), ("4 or 8", SHADES[4]), ("16 or 32", SHADES[16]), ("64", SHADES[64]))):
        picture.dot(190 + 90 * i, 308, shade, names)
        picture.text(200 + 90 * i, 312, names, size=12)
    picture.text(780, 312, "right of the line is faster", anchor="end", size=12, fill="#546e7a")
    return picture.svg()


def panel(picture, left, width, title, cells, ticks):
    low, high = math.log(ticks[0] / 1.1), math.log(ticks[-1] * 1.1)
    def x(ratio):
        return left + width * (min(max(math.log(ratio), low), high) - low) / (high - low)
    top, step = 72, 40
    models = list(dict.fromkeys(c["model"] for c in cells))
    bottom = top + step * len(models)
    picture.text(left, 54, title, weight=600)
    for tick in ticks:
        picture.line(x(tick), top - 8, x(tick), bottom, "#37474f" if tick == 1 else "#cfd8dc", 1.5 if tick == 1 else 1)
        picture.text(x(tick), bottom + 18, f"{tick:g}×", anchor="middle", size=12)
    for i, model in enumerate(models):
        y = top + step * i + step / 2
        picture.text(left - 10, y + 4, model, anchor="end", size=12)
        row = [c for c in cells if c["model"] == model]
        for j, cell in enumerate(row):
            at = y + (j - (len(row) - 1) / 2) * 8
            if "low" in cell:
                picture.line(x(cell["low"]), at, x(cell["high"]), at, "#90a4ae")
            picture.dot(x(cell["ratio"]), at, SHADES[cell["clients"]],
                        f'{model}, {cell["clients"]} clients: {cell["ratio"]:.2f}')


def servers(key, title, unit):
    """Bars of every server, for three models over HTTP with 64 clients."""
    cells = [c for c in figures("compare")["cells"] if c["protocol"] == "HTTP" and c["clients"] == 64]
    models = ("text_recognition", "minilm", "wide_mlp")
    names = list(dict.fromkeys(c["server"] for c in cells))
    picture = Picture(800, 76 + 26 * len(names), title)
    picture.text(20, 28, title, size=16, weight=600)
    for i, name in enumerate(names):
        picture.text(160, 76 + 26 * i, name, anchor="end", size=12)
    for j, model in enumerate(models):
        left, width = 172 + 212 * j, 140
        values = {c["server"]: c[key] for c in cells if c["model"] == model}
        picture.text(left, 52, model, weight=600)
        for i, name in enumerate(names):
            length = width * values[name] / max(values.values())
            picture.bar(left, 64 + 26 * i, length, 16, OURS if name.startswith("Shoal") else OTHERS)
            picture.text(left + length + 6, 76 + 26 * i, f"{values[name]:,.0f} {unit}", size=12)
    return picture.svg()


def cost():
    """Start-up, memory and disk of every server."""
    rows = figures("compare")["servers"]
    title = "Start-up to the first answer, memory with one model, and disk"
    picture = Picture(800, 76 + 26 * len(rows), title)
    picture.text(20, 28, title, size=16, weight=600)
    for j, (key, unit, heading) in enumerate((("start_s", "s", "start-up"), ("memory_mb", "MB", "memory"), ("disk_mb", "MB", "disk"))):
        left, width = 172 + 212 * j, 140
        picture.text(left, 52, heading, weight=600)
        for i, row in enumerate(rows):
            length = width * row[key] / max(r[key] for r in rows)
            picture.bar(left, 64 + 26 * i, length, 16, OURS if row["server"].startswith("Shoal") else OTHERS)
            picture.text(left + length + 6, 76 + 26 * i, f"{row[key]:g} {unit}", size=12)
    for i, row in enumerate(rows):
        picture.text(160, 76 + 26 * i, row["server"], anchor="end", size=12)
    return picture.svg()


def overload():
    """Answers in time under overload, with and without admission control."""
    cells = figures("overload")["cells"]
    title = "Answers in time under overload, relative to the capacity of the model"
    picture = Picture(800, 76 + 34 * len(cells), title)
    picture.text(20, 28, title, size=16, weight=600)
    picture.bar(230, 42, 12, 12, OURS)
    picture.text(248, 53, "with a latency objective", size=12)
    picture.bar(420, 42, 12, 12, OTHERS)
    picture.text(438, 53, "without", size=12)
    for i, cell in enumerate(cells):
        y = 66 + 34 * i
        picture.text(220, y + 16, f'{cell["model"]}, {cell["load"]:g} × capacity', anchor="end", size=12)
        for k, (key, fill) in enumerate((("in_time", OURS), ("without_admission", OTHERS))):
            length = 440 * cell[key] / 1.2
            picture.bar(230, y + 13 * k, max(length, 1), 11, fill)
            picture.text(236 + length, y + 10 + 13 * k, f"{100 * cell[key]:.0f} %", size=11)
    return picture.svg()


CHARTS = {
    "untouched.svg": untouched,
    "servers-throughput.svg": lambda: servers("per_second", "Requests per second with 64 clients, over HTTP", "/s"),
    "servers-p99.svg": lambda: servers("p99_ms", "p99 latency with 64 clients, over HTTP", "ms"),
    "servers-cost.svg": cost,
    "overload.svg": overload,
}


def main():
    directory = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "docs" / "pictures"
    for name, draw in CHARTS.items():
        (directory / name).write_text(draw())


if __name__ == "__main__":
    main()
