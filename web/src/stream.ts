// The figures of the server as they arrive, and what can be computed from two of them.

export interface Model {
  name: string
  version: string
  state: string
  reason?: string
  serving: boolean
  instances: number
  alive: number
  restarts: number
  queue: number
  memory_bytes: number
  objective_ns?: number
  late: number
  success: number
  failed: Record<string, number>
  rows: number
  batches: number
  batch_rows: number
  sizes: number[] | null
  closed: Record<string, number>
  latency: number[] | null
  queue_time: number[] | null
  compute: number[] | null
}

export interface Tenant {
  name: string
  admitted: number
  refused: Record<string, number>
  in_flight: number
}

export interface Summary {
  at: number
  accepting: boolean
  draining: boolean
  in_flight: number
  unknown: Record<string, number>
  budget_bytes?: number
  budget_used_bytes: number
  tenants?: Tenant[]
  names?: string[]
  models: Model[]
}

export interface Batch {
  n: number
  i: number
  why: string
  rows: number
  retry?: boolean
  failed?: boolean
  taken: number
  run: number
  end: number
  split: number
  requests: [number, number][]
}

// A Sample is what one model had counted at one time.
export interface Sample {
  at: number
  model: Model
}

// Rates are measured over the last ten seconds, charts show the last two minutes.
const rateWindow = 10_000
export const chartWindow = 120_000
const maxErrors = 50

// silence is how long the stream may be silent before the page says so, in milliseconds.
const silence = 1500

export interface Problem {
  at: number
  model: string
  code: string
  count: number
}

export class Store {
  version = ''
  bounds: number[] = []
  summary: Summary | null = null
  names: string[] = []
  history = new Map<string, Sample[]>()
  batches: Batch[] = []
  missed = 0
  problems: Problem[] = []
  private readonly idle = new WeakMap<Model, Recent>()
  // Clock of the server minus clock of this page, in milliseconds.
  offset = 0

  figures(s: Summary): void {
    const before = this.summary?.at ?? s.at
    this.summary = s
    this.offset = s.at - Date.now()
    if (s.names) {
      this.names = s.names
      const known = new Set(s.names)
      for (const name of this.history.keys()) if (!known.has(name)) this.history.delete(name)
    }
    for (const m of s.models) this.add(s.at, before, m)
  }

  // add keeps what a model has counted. before is the time of the last event.
  private add(at: number, before: number, m: Model): void {
    const key = m.name + '/' + m.version
    let all = this.history.get(key)
    if (!all) this.history.set(key, (all = []))
    const last = all[all.length - 1]
    if (last && fewer(last.model, m)) all.length = 0 // loaded anew
    else if (last) this.noteErrors(at, last.model, m)
    // A model that did not change sent nothing: its counters were the same until the event before.
    if (last && all.length > 0 && at - last.at > silence && before > last.at) all.push({ at: before, model: last.model })
    all.push({ at, model: m })
    let drop = 0
    while (drop < all.length - 2 && all[drop + 1]!.at < at - chartWindow) drop++
    if (drop > 0) all.splice(0, drop)
  }

  private noteErrors(at: number, before: Model, now: Model): void {
    for (const [code, n] of Object.entries(now.failed)) {
      const count = n - (before.failed[code] ?? 0)
      if (count <= 0) continue
      const last = this.problems.find(p => p.model === now.name && p.code === code)
      if (last && at - last.at < 2000) {
        last.count += count
        last.at = at
      } else this.problems.unshift({ at, model: now.name, code, count })
    }
    this.problems.length = Math.min(this.problems.length, maxErrors)
  }

  latest(key: string): Model | undefined {
    const all = this.history.get(key)
    return all?.[all.length - 1]?.model
  }

  // recent returns the counters now and those of about ten seconds before.
  recent(key: string): Recent | undefined {
    const all = this.history.get(key)
    const last = all?.[all.length - 1]
    if (!all || !last || !this.summary) return undefined
    const until = this.summary.at
    let i = all.length - 1
    while (i > 0 && all[i]!.at > until - rateWindow) i--
    const first = all[i]!
    if (first === last) {
      // Most models of a server with many do nothing.
      let idle = this.idle.get(last.model)
      if (!idle) this.idle.set(last.model, (idle = new Recent(last.model, last.model, rateWindow / 1000, this.bounds)))
      return idle
    }
    return new Recent(first.model, last.model, seconds(all, i, until, rateWindow), this.bounds)
  }

  addBatches(batches: Batch[], missed: number): void {
    this.batches.push(...batches)
    this.missed += missed
    if (this.batches.length > 2000) this.batches.splice(0, this.batches.length - 2000)
  }
}

export class Recent {
  constructor(
    readonly before: Model,
    readonly now: Model,
    readonly seconds: number,
    private readonly bounds: number[],
  ) {}

  get rate(): number {
    return (this.now.success - this.before.success) / this.seconds
  }

  get rowRate(): number {
    return (this.now.rows - this.before.rows) / this.seconds
  }

  get failedRate(): number {
    return (sum(this.now.failed) - sum(this.before.failed)) / this.seconds
  }

  get meanBatch(): number {
    const batches = this.now.batches - this.before.batches
    return batches > 0 ? (this.now.batch_rows - this.before.batch_rows) / batches : NaN
  }

  percentile(kind: 'latency' | 'queue_time' | 'compute', p: number): number {
    return percentile(diff(this.now[kind], this.before[kind]), this.bounds, p)
  }

  counts(kind: 'closed' | 'failed'): [string, number][] {
    const now = this.now[kind]
    const all = Object.entries(now).map(([k, n]): [string, number] => [k, n - (this.before[kind][k] ?? 0)])
    return all.sort((a, b) => b[1] - a[1])
  }

  sizes(): number[] {
    return diff(this.now.sizes, this.before.sizes)
  }
}

// seconds returns how long a model took, until a time, for what it has counted after sample i: at
// most most milliseconds if it stood still after the sample, and half a second at least.
export function seconds(all: Sample[], i: number, until: number, most: number): number {
  const time = until - all[i]!.at
  return Math.max(500, all[i + 1]?.model === all[i]!.model ? Math.min(most, time) : time) / 1000
}

// lost reports whether events after sample i were not received, as while the server could not be
// reached.
export function lost(all: Sample[], i: number): boolean {
  const next = all[i + 1]
  return next !== undefined && next.model !== all[i]!.model && next.at - all[i]!.at > silence
}

// fewer reports whether a counter has less than before. Those of one load only grow.
function fewer(before: Model, now: Model): boolean {
  return before.success > now.success || before.batches > now.batches || Object.entries(before.failed).some(([code, n]) => n > (now.failed[code] ?? 0))
}

export function sum(of: Record<string, number>): number {
  let total = 0
  for (const n of Object.values(of)) total += n
  return total
}

export function diff(now: number[] | null, before: number[] | null): number[] {
  return (now ?? []).map((n, i) => n - (before?.[i] ?? 0))
}

// percentile finds the bucket, and assumes that values are spread evenly in it.
export function percentile(counts: number[], bounds: number[], p: number): number {
  let total = 0
  for (const n of counts) total += n
  if (total === 0) return NaN
  let below = 0
  for (let i = 0; i < counts.length; i++) {
    const n = counts[i]!
    if (n > 0 && below + n >= total * p) {
      const from = i === 0 ? 0 : bounds[i - 1]!
      return from + ((bounds[i]! - from) * (total * p - below)) / n
    }
    below += n
  }
  return bounds[bounds.length - 1]!
}

// A refused stream is opened again after firstWait, and after twice as long each time until
// longestWait, in milliseconds: a server that refuses one page would otherwise be asked all day.
const firstWait = 1000
const longestWait = 30_000

export class Stream {
  private source: EventSource | null = null
  private last = 0
  private watched = ''
  private live = false
  private wait = firstWait // before the next refused stream is opened again
  private due = 0 // when that happens; 0 if the stream is not refused

  constructor(
    readonly store: Store,
    private readonly changed: () => void,
    private readonly state: (live: boolean, since: number) => void,
  ) {
    setInterval(() => this.check(), 250)
  }

  // watch opens the stream, with the batches of a model unless name is empty.
  watch(name: string, version: string): void {
    const query = name ? '?' + new URLSearchParams({ model: name, version }) : ''
    if (this.source && query === this.watched) return
    this.watched = query
    this.store.batches = []
    this.store.missed = 0
    this.open()
  }

  private open(): void {
    this.source?.close()
    this.due = 0
    const source = (this.source = new EventSource('dashboard/events' + this.watched))
    source.addEventListener('hello', e => {
      this.wait = firstWait // each stream begins with this event
      const hello = JSON.parse((e as MessageEvent<string>).data)
      this.store.version = hello.version
      this.store.bounds = hello.bounds_ms
    })
    source.addEventListener('figures', e => {
      this.last = performance.now()
      this.store.figures(JSON.parse((e as MessageEvent<string>).data))
      this.set(true)
      this.changed()
    })
    source.addEventListener('batches', e => {
      const t = JSON.parse((e as MessageEvent<string>).data)
      this.store.addBatches(t.batches, t.missed)
    })
  }

  private check(): void {
    const now = performance.now()
    if (this.last > 0 && now - this.last > silence) this.set(false)
    // Browsers give up after an answer other than 200, such as that of a proxy.
    if (this.source?.readyState !== EventSource.CLOSED) return
    if (this.due === 0) {
      this.due = now + this.wait
      this.wait = Math.min(2 * this.wait, longestWait)
    } else if (now >= this.due) this.open()
  }

  private set(live: boolean): void {
    if (live === this.live) return
    this.live = live
    this.state(live, Date.now())
  }
}
