import assert from 'node:assert/strict'
import { beforeEach, mock, test } from 'node:test'
import { runnerImport } from 'vite'

const { Store, Stream } = (await runnerImport('./src/stream.ts')).module

// A Source is an EventSource whose answers the test gives.
class Source {
  static CLOSED = 2
  static opened = []
  readyState = 0
  listeners = {}

  constructor() {
    Source.opened.push(this)
  }

  addEventListener(name, listener) {
    this.listeners[name] = listener
  }

  close() {
    this.readyState = Source.CLOSED
  }

  send(name, data) {
    this.listeners[name]({ data: JSON.stringify(data) })
  }
}
globalThis.EventSource = Source

let now = 0
mock.method(performance, 'now', () => now)

beforeEach(() => {
  Source.opened = []
  mock.timers.reset()
  mock.timers.enable({ apis: ['setInterval'] })
})

// refuse lets time pass, in which each stream is refused, and returns when streams were opened, in
// seconds.
function refuse(seconds) {
  const began = now
  const times = []
  for (let seen = Source.opened.length; now < began + 1000 * seconds; ) {
    for (const s of Source.opened) s.close()
    now += 250
    mock.timers.tick(250)
    for (; seen < Source.opened.length; seen++) times.push((now - began) / 1000)
  }
  return times
}

const waits = times => times.map((t, i) => Math.floor(t - (times[i - 1] ?? 0)))

test('a refused stream is opened again after longer and longer waits', () => {
  new Stream(new Store(), () => {}, () => {}).watch('', '')
  assert.deepEqual(waits(refuse(130)), [1, 2, 4, 8, 16, 30, 30, 30])
})

test('after an event the waits are short again', () => {
  const stream = new Stream(new Store(), () => {}, () => {})
  stream.watch('', '')
  refuse(70)
  stream.watch('m', '1')
  const last = Source.opened.at(-1)
  last.send('hello', { version: '1', bounds_ms: [] })
  last.send('figures', summary(1, []))
  assert.deepEqual(waits(refuse(10)), [1, 2, 4])
})

test('a reader that goes on to another model does not wait', () => {
  const stream = new Stream(new Store(), () => {}, () => {})
  stream.watch('', '')
  refuse(40)
  const before = Source.opened.length
  stream.watch('m', '1')
  assert.equal(Source.opened.length, before + 1)
})

const summary = (at, models) => ({ at, accepting: true, draining: false, in_flight: 0, unknown: {}, budget_used_bytes: 0, names: ['m/1'], models })

const model = counts => ({ name: 'm', version: '1', success: 0, failed: {}, rows: 0, batches: 0, batch_rows: 0, closed: {}, ...counts })

for (const [what, before, after] of [
  ['successes', { success: 9 }, { success: 1 }],
  ['batches', { batches: 9 }, { batches: 1 }],
  ['failures', { failed: { overloaded: 9 } }, { failed: { overloaded: 2 } }],
  ['failures, and none of the kind since', { failed: { overloaded: 2 } }, { failed: { internal: 3 } }],
])
  test('a model that was loaded anew counts from nothing: it had ' + what, () => {
    const store = new Store()
    store.figures(summary(1000, [model(before)]))
    store.figures(summary(2000, [model(after)]))
    const r = store.recent('m/1')
    assert.equal(r.before, r.now)
    assert.equal(r.failedRate, 0)
    assert.equal(r.rate, 0)
  })

test('failures of a model that goes on are counted', () => {
  const store = new Store()
  store.figures(summary(1000, [model({ failed: { overloaded: 1 } })]))
  store.figures(summary(2000, [model({ failed: { overloaded: 3, internal: 1 } })]))
  assert.equal(store.recent('m/1').failedRate, 3)
  assert.equal(store.problems.length, 2)
})

test('failures of two kinds at the same time are two problems', () => {
  const store = new Store()
  for (let n = 0; n < 20; n++) store.figures(summary(1000 + 500 * n, [model({ failed: { overloaded: n, deadline: 2 * n } })]))
  assert.deepEqual(store.problems.map(p => [p.code, p.count]).sort(), [['deadline', 38], ['overloaded', 19]])
})

// feed gives a store events every half a second, from 0 to 100 s, of a model that answers 100
// requests per second from one time on. None arrive between lost and back.
function feed(busy, lost, back) {
  const store = new Store()
  const success = at => Math.max(0, at - busy) / 10
  for (let at = 0; at <= 100_000; at += 500) if (at <= lost || at >= back) store.figures(summary(at, at > busy || at === 0 || at === back ? [model({ success: success(at) })] : []))
  return store
}

test('rates are of the last ten seconds', () => {
  assert.equal(feed(0, 1e9, 1e9).recent('m/1').rate, 100)
  assert.equal(feed(95_000, 1e9, 1e9).recent('m/1').rate, 50)
})

test('requests while the stream was interrupted do not count as recent ones', () => {
  assert.equal(feed(0, 40_000, 100_000).recent('m/1').rate, 100)
  assert.equal(feed(0, 40_000, 97_000).recent('m/1').rate, 100)
})
