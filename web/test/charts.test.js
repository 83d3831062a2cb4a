import assert from 'node:assert/strict'
import { test } from 'node:test'
import { runnerImport } from 'vite'

const { Store } = (await runnerImport('./src/stream.ts')).module
globalThis.document = { documentElement: {}, createElement: () => ({ setAttribute() {}, append() {} }) }
const { throughput } = (await runnerImport('./src/charts.ts')).module

// line returns the requests per second of a chart at some times, of a model that answers 100 per
// second from one time on. No events arrive between lost and back.
function line(busy, lost, back, times) {
  const store = new Store()
  for (let at = 0; at <= 100_000; at += 500)
    if (at <= lost || at >= back) {
      const m = { name: 'm', version: '1', success: Math.max(0, at - busy) / 10, failed: {}, rows: 0, batches: 0, batch_rows: 0, closed: {} }
      store.figures({ at, in_flight: 0, unknown: {}, names: ['m/1'], models: at > busy || at === 0 || at === back ? [m] : [] })
    }
  return throughput().values(store, 'm/1', times)[0].map(v => v && Math.round(v))
}

test('a chart shows when a quiet model became busy', () => {
  assert.deepEqual(line(50_000, 1e9, 1e9, [40_000, 50_000, 52_000, 55_000, 90_000]), [0, 0, 40, 100, 100])
})

test('a chart has a gap where the stream was interrupted, and no peak after it', () => {
  assert.deepEqual(line(0, 40_000, 80_000, [30_000, 40_000, 60_000, 79_000, 80_000, 82_000, 90_000]), [100, 100, null, null, 100, 100, 100])
})
