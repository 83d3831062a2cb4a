// Charts over time, and the curve of batch times.

import uPlot from 'uplot'
import { h } from './dom.ts'
import { count, ms, rate } from './format.ts'
import { chartWindow, diff, lost, percentile, seconds, type Store } from './stream.ts'

function colour(name: string): string {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim()
}

// A Chart shows lines over the last two minutes.
export class Chart {
  readonly element: HTMLElement
  private readonly holder = h('div', { class: 'plot' })
  private plot: uPlot | null = null
  private scheme = ''

  constructor(
    title: string,
    private readonly lines: string[],
    private readonly format: (n: number) => string,
    private readonly values: (store: Store, key: string, times: number[]) => number[][],
  ) {
    const names = lines.length < 2 ? [] : lines.map((l, i) => h('span', { class: 'key k' + i }, l))
    this.element = h('figure', {}, h('figcaption', {}, title, ...names), this.holder)
  }

  draw(store: Store, key: string): void {
    const end = store.summary?.at ?? 0
    const times: number[] = []
    for (let t = end - chartWindow; t <= end; t += 1000) times.push(t)
    const data = [times.map(t => (t - end) / 1000), ...this.values(store, key, times)] as uPlot.AlignedData
    const width = this.holder.clientWidth || 300
    const scheme = colour('--text') + width
    if (!this.plot || scheme !== this.scheme) {
      this.scheme = scheme
      this.plot?.destroy()
      this.plot = new uPlot(this.options(width), data, this.holder)
    } else this.plot.setData(data)
  }

  destroy(): void {
    this.plot?.destroy()
  }

  private options(width: number): uPlot.Options {
    const axis = { stroke: colour('--muted'), grid: { stroke: colour('--line'), width: 1 }, ticks: { show: false }, font: '12px system-ui' }
    return {
      width,
      height: 150,
      legend: { show: false },
      cursor: { show: false },
      scales: { x: { time: false, range: [-chartWindow / 1000, 0] }, y: { range: (_, __, max) => [0, Math.max(max || 0, 1e-3) * 1.1] } },
      axes: [
        { ...axis, values: (_, v) => v.map(n => (n === 0 ? 'now' : `−${-n} s`)), space: 60 },
        { ...axis, values: (_, v) => v.map(this.format), size: 62 },
      ],
      series: [{}, ...this.lines.map((_, i) => ({ stroke: colour('--line' + i), width: 1.5, points: { show: false }, spanGaps: false }))],
    }
  }
}

// at calls f with the counters at each time and five seconds before.
function over(store: Store, key: string, times: number[], f: (now: number, before: number, seconds: number) => number): number[] {
  const all = store.history.get(key) ?? []
  const find = (t: number): number => {
    let lo = 0
    let hi = all.length
    while (lo < hi) {
      const mid = (lo + hi) >> 1
      if (all[mid]!.at <= t) lo = mid + 1
      else hi = mid
    }
    return lo - 1
  }
  return times.map(t => {
    const now = find(t)
    if (now < 0 || (lost(all, now) && t > all[now]!.at)) return null as unknown as number // a gap
    const before = Math.max(0, find(t - 5000))
    return f(now, before, seconds(all, before, t, 5000))
  })
}

export function throughput(): Chart {
  return new Chart('Requests per second', ['answered', 'failed'], rate, (store, key, times) => {
    const all = store.history.get(key) ?? []
    const failed = (i: number) => Object.values(all[i]!.model.failed).reduce((s, n) => s + n, 0)
    return [over(store, key, times, (n, b, s) => (all[n]!.model.success - all[b]!.model.success) / s), over(store, key, times, (n, b, s) => (failed(n) - failed(b)) / s)]
  })
}

export function latency(): Chart {
  return new Chart('Latency of answered requests', ['p50', 'p95', 'p99'], ms, (store, key, times) => {
    const all = store.history.get(key) ?? []
    return [0.5, 0.95, 0.99].map(p =>
      over(store, key, times, (n, b) => {
        const v = percentile(diff(all[n]!.model.latency, all[b]!.model.latency), store.bounds, p)
        return Number.isNaN(v) ? (null as unknown as number) : v
      }),
    )
  })
}

export function queue(): Chart {
  return new Chart('Requests in the queue', ['waiting'], count, (store, key, times) => {
    const all = store.history.get(key) ?? []
    return [over(store, key, times, n => all[n]!.model.queue)]
  })
}

export interface Size {
  rows: number
  takes_ns: number
  slow_ns?: number
  live: number
  calibrated: boolean
}

// curve draws how long batches take by their rows, and marks the size that was chosen. The caller
// destroys what it returns: uPlot keeps all charts that were not.
export function curve(holder: HTMLElement, sizes: Size[], chosen: number): uPlot {
  const width = holder.clientWidth || 300
  const axis = { stroke: colour('--muted'), grid: { stroke: colour('--line'), width: 1 }, ticks: { show: false }, font: '12px system-ui' }
  const rows = sizes.map(s => s.rows)
  const data = [rows, sizes.map(s => s.takes_ns / 1e6), sizes.map(s => (s.slow_ns ? s.slow_ns / 1e6 : null)), sizes.map(s => (s.rows / s.takes_ns) * 1e9)]
  return new uPlot(
    {
      width,
      height: 220,
      legend: { show: false },
      cursor: { show: false },
      scales: {
        x: { time: false, distr: 3, log: 2, range: [Math.min(1, ...rows), Math.max(2, ...rows)] },
        y: { range: (_, __, max) => [0, (max || 1) * 1.1] },
        rows: { range: (_, __, max) => [0, (max || 1) * 1.1] },
      },
      axes: [
        { ...axis, values: (_, v) => v.map(n => (n === null ? '' : String(n))) },
        { ...axis, values: (_, v) => v.map(ms), size: 62 },
        { ...axis, scale: 'rows', side: 1, grid: { show: false }, values: (_, v) => v.map(count), size: 56 },
      ],
      series: [
        {},
        { stroke: colour('--line0'), width: 1.5, points: { show: true, size: 5, fill: colour('--line0') } },
        { stroke: colour('--line0'), width: 1, dash: [3, 3], points: { show: false } },
        { stroke: colour('--line1'), width: 1.5, scale: 'rows', points: { show: false } },
      ],
      hooks: {
        draw: [
          u => {
            if (!chosen) return
            const x = Math.round(u.valToPos(chosen, 'x', true))
            u.ctx.save()
            u.ctx.strokeStyle = colour('--text')
            u.ctx.setLineDash([4, 4])
            u.ctx.beginPath()
            u.ctx.moveTo(x, u.bbox.top)
            u.ctx.lineTo(x, u.bbox.top + u.bbox.height)
            u.ctx.stroke()
            u.ctx.restore()
          },
        ],
      },
    },
    data as uPlot.AlignedData,
    holder,
  )
}
