import { curve, latency, queue, throughput, type Size } from './charts.ts'
import { attribute, h, text } from './dom.ts'
import { bytes, clock, count, ms, rate } from './format.ts'
import { state } from './overview.ts'
import { reason, sign } from './reasons.ts'
import type { Recent, Store } from './stream.ts'
import { Timeline } from './timeline.ts'
import { modelPath, TryIt } from './try.ts'

// explainEvery is how often the explanation is read again, in milliseconds.
const explainEvery = 5000

export class ModelView {
  readonly element: HTMLElement
  private readonly key: string
  private readonly state = h('span', { class: 'state' })
  private readonly reason = h('p', { class: 'reason' })
  private readonly tiles = h('dl', { class: 'tiles' })
  private readonly values = new Map<string, HTMLElement>()
  private readonly timeline: Timeline
  private readonly charts = [throughput(), latency(), queue()]
  private readonly sizes = new Bars('Batches by rows')
  private readonly closed = new Bars('Batches by close reason', true)
  private readonly failed = new Bars('Failed and refused requests')
  private readonly errors = h('ul', { class: 'errors' })
  private readonly plot = h('div', { class: 'plot' })
  private curve: { destroy(): void } | null = null
  private readonly curveSection: HTMLElement
  private readonly why = h('div', { class: 'why' })
  private explained = -Infinity // when

  constructor(
    private readonly store: Store,
    private readonly name: string,
    private readonly version: string,
  ) {
    this.key = name + '/' + version
    this.timeline = new Timeline(store)
    this.curveSection = h('figure', {}, h('figcaption', {}, 'Time of a batch by its rows', h('span', { class: 'key k0' }, 'time (p95 dashed)'), h('span', { class: 'key k1' }, 'rows/s'), h('span', { class: 'chosen' })), this.plot)
    this.element = h(
      'article',
      {},
      h('p', {}, h('a', { href: '#/' }, '← all models')),
      h('div', { class: 'title' }, h('h2', {}, name), h('span', { class: 'muted' }, version ? 'version ' + version : ''), this.state),
      this.reason,
      this.tiles,
      this.timeline.element,
      h('div', { class: 'grid' }, ...this.charts.map(c => c.element)),
      h('div', { class: 'grid' }, this.sizes.element, this.closed.element, this.failed.element),
      this.errors,
      h('section', { 'aria-labelledby': 'why-title' }, h('h3', { id: 'why-title' }, 'Why it runs like this'), this.curveSection, this.why),
      new TryIt(name, version).element,
    )
  }

  draw(): void {
    const r = this.store.recent(this.key)
    if (!r) {
      if (this.store.summary) this.drawNone()
      return
    }
    text(this.state, state(r))
    attribute(this.state, 'data-state', state(r))
    text(this.reason, r.now.reason ?? '')
    this.drawTiles(r)
    this.timeline.draw()
    for (const c of this.charts) c.draw(this.store, this.key)
    this.sizes.draw(r.sizes().map((n, i): [string, number] => [i === 0 ? '1' : i === 1 ? '2' : `${2 ** (i - 1) + 1}–${2 ** i}`, n]))
    this.closed.draw(r.counts('closed'))
    this.failed.draw(r.counts('failed').map(([k, n]): [string, number] => [k.replaceAll('_', ' '), n]))
    const problems = this.store.problems.filter(p => p.model === this.name).slice(0, 5)
    while (this.errors.children.length < problems.length) this.errors.append(h('li'))
    while (this.errors.children.length > problems.length) this.errors.lastElementChild!.remove()
    for (const [i, p] of problems.entries()) text(this.errors.children[i]!, `${clock(p.at)}  ${count(p.count)} × ${p.code.replaceAll('_', ' ')}`)
    if (r.now.serving && performance.now() - this.explained > explainEvery) {
      this.explained = performance.now()
      void this.explain()
    }
  }

  // drawNone shows that the server does not have the model, or not any more.
  private drawNone(): void {
    text(this.reason, 'The server has no such model.')
    text(this.state, '')
    attribute(this.state, 'data-state', '')
    this.tiles.replaceChildren()
    this.values.clear()
    for (const c of this.charts) c.draw(this.store, this.key)
    for (const b of [this.sizes, this.closed, this.failed]) b.draw([])
  }

  destroy(): void {
    for (const c of this.charts) c.destroy()
    this.curve?.destroy()
  }

  private drawTiles(r: Recent): void {
    const m = r.now
    this.tile('Requests per second', rate(r.rate))
    this.tile('Rows per second', rate(r.rowRate))
    this.tile('Latency p50', ms(r.percentile('latency', 0.5)))
    this.tile('p95', ms(r.percentile('latency', 0.95)))
    this.tile('p99', ms(r.percentile('latency', 0.99)))
    this.tile('In the queue', count(m.queue))
    this.tile('Mean batch', Number.isNaN(r.meanBatch) ? '–' : r.meanBatch.toFixed(1))
    this.tile('Failed or refused per second', rate(r.failedRate))
    this.tile('Instances', m.alive < m.instances ? `${m.alive} of ${m.instances}` : String(m.alive))
    if (m.restarts) this.tile('Restarts', count(m.restarts))
    if (m.memory_bytes) this.tile('Memory', bytes(m.memory_bytes))
    if (m.objective_ns) this.tile('Later than ' + ms(m.objective_ns / 1e6), count(m.late))
    this.tile('Answered since loaded', count(m.success))
  }

  private tile(name: string, value: string): void {
    let e = this.values.get(name)
    if (!e) {
      e = h('dd')
      this.values.set(name, e)
      this.tiles.append(h('div', {}, h('dt', {}, name), e))
    }
    text(e, value)
  }

  // explain shows the words of shoal explain. Its curve is drawn instead of written.
  private async explain(): Promise<void> {
    const path = modelPath(this.name, this.version) + '/explain'
    try {
      const [words, figures] = await Promise.all([fetch(path + '?width=10000', { headers: { Accept: 'text/plain' } }), fetch(path)])
      if (!words.ok || !figures.ok) return
      this.showWords(await words.text())
      const f = (await figures.json()) as { curve?: Size[]; policy?: { efficient: number } }
      this.curveSection.hidden = !f.curve || f.curve.length < 2
      if (f.curve && f.curve.length > 1) {
        this.curve?.destroy()
        this.curve = curve(this.plot, f.curve, f.policy?.efficient ?? 0)
        if (!this.element.isConnected) this.destroy() // the reader has gone on
        text(this.curveSection.querySelector('.chosen')!, f.policy?.efficient ? `batches are filled up to ${f.policy.efficient} rows` : '')
      }
    } catch {
      // the stream says that the server cannot be reached
    }
  }

  private showWords(all: string): void {
    const parts: Node[] = []
    let table: string[] = []
    const flush = () => {
      if (table.length > 0) parts.push(h('pre', { tabindex: 0, 'aria-label': 'Figures' }, table.join('\n')))
      table = []
    }
    for (const line of all.split('\n').slice(1)) {
      if (line === '') continue
      if (/^[A-Z]/.test(line)) {
        flush()
        parts.push(h('h4', {}, line))
      } else if (/^ {2}\S/.test(line) && line.endsWith('.')) {
        flush()
        parts.push(h('p', {}, line.trim()))
      } else table.push(line.trimEnd())
    }
    flush()
    if (this.why.textContent !== parts.map(p => p.textContent).join('')) this.why.replaceChildren(...parts)
  }
}

// Bars show counts of the last ten seconds.
class Bars {
  readonly element: HTMLElement
  private readonly list = h('ul', { class: 'bars' })
  private readonly none = h('p', { class: 'note' }, 'none')
  private readonly rows = new Map<string, { item: HTMLElement; bar: HTMLElement; value: HTMLElement }>()

  constructor(
    title: string,
    private readonly signs = false,
  ) {
    this.element = h('figure', {}, h('figcaption', {}, title, ' ', h('span', { class: 'muted' }, 'in 10 s')), this.list, this.none)
  }

  draw(counts: [string, number][]): void {
    counts = counts.filter(c => c[1] > 0)
    this.none.hidden = counts.length > 0
    const most = Math.max(1, ...counts.map(c => c[1]))
    const seen = new Set<string>()
    for (const [name, n] of counts) {
      seen.add(name)
      let row = this.rows.get(name)
      if (!row) {
        const bar = h('span', { class: 'fill' })
        const value = h('span', { class: 'value' })
        const item = h('li', this.signs ? { title: reason(name).means } : {}, h('span', { class: 'name' }, this.signs && sign(name), name), h('span', { class: 'track' }, bar), value)
        this.rows.set(name, (row = { item, bar, value }))
        this.list.append(item)
      }
      const width = ((100 * n) / most).toFixed(1) + '%'
      if (row.bar.style.width !== width) row.bar.style.width = width
      text(row.value, count(n))
    }
    for (const [name, row] of this.rows)
      if (!seen.has(name)) {
        row.item.remove()
        this.rows.delete(name)
      }
  }
}
