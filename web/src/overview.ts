import { attribute, h, text } from './dom.ts'
import { bytes, clock, count, ms, rate } from './format.ts'
import type { Recent, Store } from './stream.ts'

// maxShown is how many models are in the table. A filter finds the others.
const maxShown = 100

interface Column {
  title: string
  numeric: boolean
  value: (r: Recent) => number | string
  show: (r: Recent) => string
}

const columns: Column[] = [
  { title: 'Model', numeric: false, value: r => r.now.name, show: r => r.now.name },
  { title: 'State', numeric: false, value: r => r.now.state, show: state },
  { title: 'req/s', numeric: true, value: r => r.rate, show: r => (r.now.serving ? rate(r.rate) : '') },
  { title: 'p50', numeric: true, value: r => r.percentile('latency', 0.5) || 0, show: r => (r.now.serving ? ms(r.percentile('latency', 0.5)) : '') },
  { title: 'p99', numeric: true, value: r => r.percentile('latency', 0.99) || 0, show: r => (r.now.serving ? ms(r.percentile('latency', 0.99)) : '') },
  { title: 'Queue', numeric: true, value: r => r.now.queue, show: r => (r.now.serving ? count(r.now.queue) : '') },
  { title: 'Batch', numeric: true, value: r => r.meanBatch || 0, show: r => (Number.isNaN(r.meanBatch) ? (r.now.serving ? '–' : '') : r.meanBatch.toFixed(1)) },
  { title: 'Failed/s', numeric: true, value: r => r.failedRate, show: r => (r.now.serving ? rate(r.failedRate) : '') },
  { title: 'Instances', numeric: true, value: r => r.now.alive, show: r => (r.now.serving ? (r.now.alive < r.now.instances ? `${r.now.alive} of ${r.now.instances}` : String(r.now.alive)) : '') },
  { title: 'Memory', numeric: true, value: r => r.now.memory_bytes, show: r => (r.now.memory_bytes ? bytes(r.now.memory_bytes) : '') },
]

export function state(r: Recent): string {
  const m = r.now
  if (m.serving && m.instances > 0 && m.alive === 0) return 'no instance'
  if (m.serving && m.alive < m.instances) return 'degraded'
  return m.state.toLowerCase()
}

interface Row {
  element: HTMLTableRowElement
  link: HTMLAnchorElement
  cells: HTMLElement[]
  reason: HTMLElement
  shown: Recent | null // what it shows; the same object has the same figures
}

export class Overview {
  readonly element: HTMLElement
  private readonly totals = h('dl', { class: 'tiles' })
  private readonly tiles = new Map<string, HTMLElement>()
  private readonly body = h('tbody')
  private readonly more = h('p', { class: 'note' })
  private readonly rows = new Map<string, Row>()
  private readonly heads: HTMLElement[]
  private readonly errors = h('ul', { class: 'errors' })
  private readonly errorSection: HTMLElement
  private readonly tenantBody = h('tbody')
  private readonly tenantSection: HTMLElement
  private readonly filter: HTMLInputElement
  private sort = 0
  private down = false

  constructor(private readonly store: Store) {
    this.filter = h('input', { type: 'search', id: 'filter', placeholder: 'name', autocomplete: 'off', input: () => this.draw() })
    this.heads = columns.map((c, i) => h('th', { scope: 'col', class: c.numeric ? 'number' : '' }, h('button', { type: 'button', click: () => this.by(i) }, c.title)))
    this.errorSection = h('section', { 'aria-labelledby': 'errors-title' }, h('h2', { id: 'errors-title' }, 'Recent errors'), this.errors)
    this.tenantSection = h(
      'section',
      { 'aria-labelledby': 'tenants-title' },
      h('h2', { id: 'tenants-title' }, 'Tenants'),
      h('div', { class: 'scroll' }, h('table', {}, h('thead', {}, h('tr', {}, ...['Tenant', 'In flight', 'Admitted', 'Refused'].map((t, i) => h('th', { scope: 'col', class: i ? 'number' : '' }, t)))), this.tenantBody)),
    )
    this.element = h(
      'div',
      {},
      this.totals,
      h(
        'section',
        { 'aria-labelledby': 'models-title' },
        h('div', { class: 'bar' }, h('h2', { id: 'models-title' }, 'Models'), h('label', { for: 'filter' }, 'Filter'), this.filter),
        h('div', { class: 'scroll', tabindex: 0, role: 'region', 'aria-labelledby': 'models-title' }, h('table', { id: 'models' }, h('thead', {}, h('tr', {}, ...this.heads)), this.body)),
        this.more,
      ),
      this.errorSection,
      this.tenantSection,
    )
    this.heads[0]!.setAttribute('aria-sort', 'ascending')
    this.draw()
  }

  private by(column: number): void {
    this.down = this.sort === column ? !this.down : columns[column]!.numeric
    this.sort = column
    for (const [i, th] of this.heads.entries()) {
      if (i === column) th.setAttribute('aria-sort', this.down ? 'descending' : 'ascending')
      else th.removeAttribute('aria-sort')
    }
    this.draw()
  }

  draw(): void {
    const all: { key: string; recent: Recent }[] = []
    let total = 0
    let failed = 0
    let waiting = 0
    let ready = 0
    const wanted = this.filter.value.trim().toLowerCase()
    for (const key of this.store.names) {
      const recent = this.store.recent(key)
      if (!recent) continue
      total += recent.rate
      failed += recent.failedRate
      waiting += recent.now.queue
      if (recent.now.state === 'READY') ready++
      if (!wanted || recent.now.name.toLowerCase().includes(wanted)) all.push({ key, recent })
    }
    this.tile('Models ready', this.store.names.length ? `${count(ready)} of ${count(this.store.names.length)}` : '0')
    this.tile('Requests per second', rate(total))
    this.tile('In the queue', count(waiting))
    this.tile('Failed or refused per second', rate(failed))
    const column = columns[this.sort]!
    if (this.sort > 0 || this.down) {
      const values = new Map(all.map(a => [a, column.value(a.recent)]))
      all.sort((a, b) => {
        const x = values.get(a)!
        const y = values.get(b)!
        return (x < y ? -1 : x > y ? 1 : 0) * (this.down ? -1 : 1)
      })
    }
    this.show(all.slice(0, maxShown))
    text(this.more, all.length > maxShown ? `${count(all.length - maxShown)} more models; use the filter to find one.` : this.store.summary && all.length === 0 ? (wanted ? 'No model has such a name.' : 'The server has no models.') : '')
    this.showErrors()
    this.showTenants()
  }

  private tile(name: string, value: string): void {
    let e = this.tiles.get(name)
    if (!e) {
      e = h('dd')
      this.tiles.set(name, e)
      this.totals.append(h('div', {}, h('dt', {}, name), e))
    }
    text(e, value)
  }

  private show(shown: { key: string; recent: Recent }[]): void {
    let at = this.body.firstElementChild
    for (const { key, recent } of shown) {
      let row = this.rows.get(key)
      if (!row) this.rows.set(key, (row = newRow(key, recent)))
      if (row.shown !== recent) update(row, recent)
      row.shown = recent
      if (row.element === at) at = at.nextElementSibling
      else this.body.insertBefore(row.element, at)
    }
    while (at) {
      const next = at.nextElementSibling
      at.remove()
      at = next
    }
    if (this.rows.size > 4 * maxShown) for (const [key, row] of this.rows) if (!row.element.isConnected) this.rows.delete(key)
  }

  private showErrors(): void {
    this.errorSection.hidden = this.store.problems.length === 0
    const items = this.store.problems.slice(0, 8)
    while (this.errors.children.length < items.length) this.errors.append(h('li'))
    while (this.errors.children.length > items.length) this.errors.lastElementChild!.remove()
    for (const [i, p] of items.entries()) text(this.errors.children[i]!, `${clock(p.at)}  ${p.model}: ${count(p.count)} × ${p.code.replaceAll('_', ' ')}`)
  }

  private showTenants(): void {
    const tenants = this.store.summary?.tenants ?? []
    this.tenantSection.hidden = tenants.length === 0
    while (this.tenantBody.children.length < tenants.length) this.tenantBody.append(h('tr', {}, h('td'), h('td', { class: 'number' }), h('td', { class: 'number' }), h('td', { class: 'number' })))
    while (this.tenantBody.children.length > tenants.length) this.tenantBody.lastElementChild!.remove()
    for (const [i, t] of tenants.entries()) {
      const cells = this.tenantBody.children[i]!.children
      text(cells[0]!, t.name || '(none)')
      text(cells[1]!, count(t.in_flight))
      text(cells[2]!, count(t.admitted))
      text(cells[3]!, count(Object.values(t.refused).reduce((s, n) => s + n, 0)))
    }
  }
}

function newRow(key: string, r: Recent): Row {
  const link = h('a', { href: `#/${encodeURIComponent(r.now.name)}/${encodeURIComponent(r.now.version)}` })
  const reason = h('div', { class: 'reason' })
  const cells = columns.map((c, i) => (i === 0 ? link : h('span', { class: i === 1 ? 'state' : '', 'data-column': c.title })))
  const element = h('tr', { 'data-model': key }, ...columns.map((c, i) => h(i === 0 ? 'th' : 'td', i === 0 ? { scope: 'row' } : { class: c.numeric ? 'number' : '' }, cells[i]!, i === 1 && reason)))
  return { element, link, cells, reason, shown: null }
}

function update(row: Row, r: Recent): void {
  for (const [i, c] of columns.entries()) text(row.cells[i]!, c.show(r))
  text(row.reason, r.now.reason ?? '')
  attribute(row.cells[1]!, 'data-state', state(r))
}
