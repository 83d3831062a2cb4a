// The batches of a model as they ran: one lane for each instance, one bar for each request. A bar
// is thin while the request waits and thick while it runs. The requests of a batch lie on each
// other, and the sign at the left edge of their run says why the batch closed.

import { h, text } from './dom.ts'
import { clock, ms } from './format.ts'
import { reason, sign } from './reasons.ts'
import type { Batch, Store } from './stream.ts'

const windows = [50, 200, 1000, 5000, 30_000]
const label = 84
const maxRows = 32

interface Placed {
  batch: Batch
  from: number // first request's arrival, in milliseconds since the epoch
  to: number
  row: number
  lane: number
}

export class Timeline {
  readonly element: HTMLElement
  private readonly canvas: HTMLCanvasElement
  private readonly note: HTMLElement
  private readonly legend: HTMLElement
  private readonly table: HTMLTableSectionElement
  private readonly details: HTMLDetailsElement
  private readonly pauseButton: HTMLButtonElement
  private readonly windowButtons: HTMLButtonElement[]
  private span = 5000
  private chosen = false // the span is that of the user, or fits the first batches
  private paused: Batch[] | null = null
  private pausedAt = 0
  private selected: Batch | null = null
  private placed: { box: [number, number, number, number]; batch: Batch }[] = []
  private shown = ''
  private readonly glyphs = new Map<string, Path2D>()

  constructor(private readonly store: Store) {
    this.canvas = h('canvas', {
      class: 'timeline',
      tabindex: 0,
      role: 'img',
      'aria-label': 'Timeline of batches. Space pauses, the left and right arrows select a batch. The table below has the same batches.',
      keydown: e => this.key(e as KeyboardEvent),
      click: e => this.click(e as MouseEvent),
    })
    this.note = h('p', { class: 'note', role: 'status' })
    this.legend = h('ul', { class: 'legend', 'aria-label': 'Close reasons' })
    this.table = h('tbody')
    this.pauseButton = h('button', { type: 'button', 'aria-pressed': 'false', click: () => this.pause() }, 'Pause')
    this.windowButtons = windows.map(w =>
      h('button', { type: 'button', 'aria-pressed': 'false', click: () => this.setSpan(w) }, w < 1000 ? w + ' ms' : w / 1000 + ' s'),
    )
    this.details = h(
      'details',
      { toggle: () => this.fill(true) },
      h('summary', {}, 'Batches as a table'),
      h(
        'div',
        { class: 'scroll', tabindex: 0, role: 'region', 'aria-label': 'Batches' },
        h(
          'table',
          { id: 'batches' },
          h('thead', {}, h('tr', {}, ...['Began', 'Instance', 'Requests', 'Rows', 'Waited', 'Ran', 'Closed because'].map(t => h('th', { scope: 'col' }, t)))),
          this.table,
        ),
      ),
    )
    this.element = h(
      'section',
      { 'aria-labelledby': 'timeline-title' },
      h('div', { class: 'bar' }, h('h3', { id: 'timeline-title' }, 'Batches'), h('div', { class: 'buttons', role: 'group', 'aria-label': 'Time shown' }, ...this.windowButtons), this.pauseButton),
      this.canvas,
      this.note,
      this.legend,
      this.details,
    )
  }

  private setSpan(w: number): void {
    this.span = w
    this.chosen = true
    this.pressWindow()
    this.draw()
  }

  private pressWindow(): void {
    for (const [i, b] of this.windowButtons.entries()) b.setAttribute('aria-pressed', String(windows[i] === this.span))
  }

  private pause(): void {
    this.paused = this.paused ? null : this.store.batches.slice()
    this.pausedAt = Date.now() + this.store.offset
    if (!this.paused) this.selected = null
    this.pauseButton.setAttribute('aria-pressed', String(this.paused !== null))
    text(this.pauseButton, this.paused ? 'Continue' : 'Pause')
    this.draw()
  }

  private key(e: KeyboardEvent): void {
    if (e.key === ' ') this.pause()
    else if (e.key === 'ArrowLeft' || e.key === 'ArrowRight') {
      if (!this.paused) this.pause()
      const all = this.visible().sort((a, b) => a.taken - b.taken)
      const at = this.selected ? all.indexOf(this.selected) : -1
      const next = e.key === 'ArrowRight' ? at + 1 : at < 0 ? all.length - 1 : at - 1
      this.selected = all[Math.max(0, Math.min(all.length - 1, next))] ?? null
      this.draw()
    } else return
    e.preventDefault()
  }

  private click(e: MouseEvent): void {
    const r = this.canvas.getBoundingClientRect()
    const x = e.clientX - r.left
    const y = e.clientY - r.top
    const hit = this.placed.findLast(p => x >= p.box[0] && x <= p.box[0] + p.box[2] && y >= p.box[1] && y <= p.box[1] + p.box[3])
    if (hit && !this.paused) this.pause()
    this.selected = hit?.batch ?? null
    this.draw()
  }

  private batches(): Batch[] {
    return this.paused ?? this.store.batches
  }

  private end(): number {
    const all = this.batches()
    const last = all.reduce((t, b) => Math.max(t, b.taken + b.split), 0) / 1000
    const now = this.paused ? this.pausedAt : (this.store.summary?.at ?? 0)
    return this.span >= 5000 ? now : last
  }

  private visible(): Batch[] {
    const end = this.end()
    return this.batches().filter(b => (b.taken + b.split) / 1000 > end - this.span && (b.taken - b.requests[0]![0]) / 1000 < end)
  }

  // chooseSpan shows the first ten batches, and stays with that.
  private chooseSpan(): void {
    const all = this.store.batches.slice(0, 10)
    if (this.chosen || all.length === 0) return
    const began = Math.min(...all.map(b => b.taken - Math.max(...b.requests.map(r => r[0]))))
    const ended = Math.max(...all.map(b => b.taken + b.split))
    const span = windows.find(w => w >= (ended - began) / 1000) ?? windows[windows.length - 1]!
    this.chosen = all.length === 10
    if (span === this.span) return
    this.span = span
    this.pressWindow()
  }

  // place gives each batch rows of its lane that are free from its first arrival to its end.
  private place(batches: Batch[], lanes: number[]): { placed: Placed[]; depth: number[] } {
    const placed: Placed[] = []
    const depth = lanes.map(() => 1)
    const free = lanes.map((): number[] => [])
    const items = batches.map(batch => {
      const longest = batch.requests.reduce((w, r) => Math.max(w, r[0]), 0)
      return { batch, from: (batch.taken - longest) / 1000, to: (batch.taken + batch.split) / 1000 }
    })
    items.sort((a, b) => a.from - b.from)
    for (const item of items) {
      const lane = lanes.indexOf(item.batch.i)
      const rows = free[lane]!
      const n = Math.min(item.batch.requests.length, maxRows)
      let row = 0
      for (let k = 0; k < row + n && row < maxRows * 2; k++) if ((rows[k] ?? 0) > item.from) row = k + 1
      for (let k = row; k < row + n; k++) rows[k] = item.to
      depth[lane] = Math.max(depth[lane]!, row + n)
      placed.push({ ...item, row, lane })
    }
    return { placed, depth }
  }

  draw(): void {
    this.chooseSpan()
    const visible = this.visible()
    const lanes = [...new Set(visible.map(b => b.i))].sort((a, b) => a - b)
    const end = this.end()
    const { placed, depth } = this.place(visible, lanes)
    const style = getComputedStyle(this.canvas)
    const colour = (name: string) => style.getPropertyValue(name).trim()
    const width = this.canvas.clientWidth || 600
    const gap = 22
    const total = depth.reduce((s, d) => s + d, 0)
    const bar = total > 60 ? Math.max(2, Math.floor(420 / total)) : 7
    const height = Math.max(90, lanes.length * gap + total * bar + 24)
    const ratio = window.devicePixelRatio || 1
    if (this.canvas.width !== Math.round(width * ratio) || this.canvas.height !== Math.round(height * ratio)) {
      this.canvas.width = Math.round(width * ratio)
      this.canvas.height = Math.round(height * ratio)
      this.canvas.style.height = height + 'px'
    }
    const c = this.canvas.getContext('2d')!
    c.setTransform(ratio, 0, 0, ratio, 0, 0)
    c.clearRect(0, 0, width, height)
    const left = width < 500 ? 22 : label
    const x = (t: number) => left + ((t - end + this.span) / this.span) * (width - left - 4)
    c.font = '12px ' + style.fontFamily
    c.textBaseline = 'middle'
    this.grid(c, x, end, left, width, height, colour)
    this.placed = []
    const tops: number[] = []
    let y = 4
    for (const [i, d] of depth.entries()) {
      tops.push(y)
      c.fillStyle = colour('--muted')
      c.fillText(left === label ? 'instance ' + lanes[i] : String(lanes[i]), 0, y + gap / 2 + 2)
      y += gap + d * bar
    }
    c.save()
    c.beginPath()
    c.rect(left, 0, width - left, height)
    c.clip()
    for (const p of placed) this.drawBatch(c, p, x, tops[p.lane]! + gap + p.row * bar, bar, colour)
    c.restore()
    this.say(visible)
    this.fill(false)
  }

  private grid(c: CanvasRenderingContext2D, x: (t: number) => number, end: number, left: number, width: number, height: number, colour: (n: string) => string): void {
    c.strokeStyle = colour('--line')
    c.fillStyle = colour('--muted')
    c.lineWidth = 1
    const ticks = width < 500 ? 3 : 5
    for (let k = 0; k <= ticks; k++) {
      const t = end - (this.span * k) / ticks
      const at = Math.round(x(t)) + 0.5
      c.beginPath()
      c.moveTo(at, 0)
      c.lineTo(at, height - 18)
      c.stroke()
      const name = k === 0 ? '0' : '−' + ms((this.span * k) / ticks)
      const w = c.measureText(name).width
      c.fillText(name, Math.min(width - w, Math.max(left - 10, at - w / 2)), height - 8)
    }
  }

  private drawBatch(c: CanvasRenderingContext2D, p: Placed, x: (t: number) => number, y: number, bar: number, colour: (n: string) => string): void {
    const b = p.batch
    const taken = x(b.taken / 1000)
    const run = x((b.taken + b.run) / 1000)
    const stop = x((b.taken + b.end) / 1000)
    const split = x((b.taken + b.split) / 1000)
    const n = Math.min(b.requests.length, maxRows)
    const inner = Math.max(1, bar - 1)
    for (let k = 0; k < n; k++) {
      const top = y + k * bar
      const wait = x((b.taken - b.requests[k]![0]) / 1000)
      c.fillStyle = colour('--wait')
      c.fillRect(wait, top + inner / 3, taken - wait, Math.max(1, inner / 3))
      c.fillRect(wait, top, 1, inner) // where it arrived
      c.fillStyle = colour('--join')
      c.fillRect(taken, top, Math.max(0, split - taken), inner)
      c.fillStyle = colour(b.failed ? '--bad' : '--run')
      c.fillRect(run, top, Math.max(1.5, stop - run), inner)
    }
    if (this.selected === b || b.retry) {
      c.strokeStyle = colour('--text')
      c.setLineDash(this.selected === b ? [] : [3, 2])
      c.strokeRect(taken - 1, y - 1.5, split - taken + 2, n * bar + 2)
      c.setLineDash([])
    }
    // The sign stands above the moment at which the batch closed.
    c.strokeStyle = c.fillStyle = colour('--text')
    c.lineWidth = 1
    c.beginPath()
    c.moveTo(taken, y - 3)
    c.lineTo(taken, y + n * bar)
    c.stroke()
    this.glyph(c, b.why, taken - 1, y - 15)
    if (split - taken > c.measureText(b.why).width + 18) c.fillText(b.why, taken + 15, y - 8)
    this.placed.push({ box: [taken, y - 16, Math.max(12, split - taken), n * bar + 16], batch: b })
  }

  private glyph(c: CanvasRenderingContext2D, why: string, x: number, y: number): void {
    let path = this.glyphs.get(why)
    if (!path) this.glyphs.set(why, (path = new Path2D(reason(why).path)))
    c.save()
    c.translate(x, y)
    c.scale(0.95, 0.95)
    c.lineWidth = 1.8
    if (reason(why).fill) c.fill(path)
    else c.stroke(path)
    c.restore()
  }

  private say(visible: Batch[]): void {
    const b = this.selected
    if (b) {
      const waits = b.requests.map(r => r[0] / 1000)
      text(
        this.note,
        `Instance ${b.i} ran ${b.requests.length} request${b.requests.length === 1 ? '' : 's'} with ${b.rows} row${b.rows === 1 ? '' : 's'} for ${ms((b.end - b.run) / 1000)}. ` +
          `They had waited ${ms(Math.min(...waits))} to ${ms(Math.max(...waits))}. Closed as “${b.why}”: ${reason(b.why).means}.`,
      )
    } else if (this.store.batches.length === 0) text(this.note, 'No batch has run since this page was opened.')
    else if (this.store.missed > 0) text(this.note, `${this.store.missed.toLocaleString('en')} batches are left out, because too many run to draw them all.`)
    else text(this.note, '')
    const names = [...new Set(visible.map(v => v.why))].sort()
    if (names.join() === this.shown) return
    this.shown = names.join()
    this.legend.replaceChildren(...names.map(n => h('li', {}, sign(n), h('b', {}, n), ' ' + reason(n).means)))
  }

  // fill writes the table, if it is open.
  private fill(now: boolean): void {
    if (!this.details.open || (this.paused && !now)) return
    const rows = this.batches()
      .slice(-50)
      .reverse()
      .map(b =>
        h(
          'tr',
          { 'data-taken': b.taken, 'data-run': b.run, 'data-end': b.end, 'data-why': b.why, 'data-waits': b.requests.map(r => r[0]).join(' ') },
          h('td', {}, clock(b.taken / 1000) + '.' + String(Math.floor(b.taken / 1000) % 1000).padStart(3, '0')),
          h('td', {}, String(b.i)),
          h('td', {}, String(b.requests.length)),
          h('td', {}, String(b.rows)),
          h('td', {}, ms(Math.max(...b.requests.map(r => r[0])) / 1000)),
          h('td', {}, ms((b.end - b.run) / 1000) + (b.failed ? ', failed' : '')),
          h('td', {}, b.why),
        ),
      )
    this.table.replaceChildren(...rows)
  }
}
