import assert from 'node:assert/strict'
import { test } from 'node:test'
import { runnerImport } from 'vite'

process.env.TZ = 'Asia/Tokyo'
const { Timeline } = (await runnerImport('./src/timeline.ts')).module
const { clock } = (await runnerImport('./src/format.ts')).module

// A Part is as much of an element as the table needs.
class Part {
  children = []

  setAttribute() {}

  addEventListener() {}

  append(...children) {
    this.children.push(...children)
  }

  replaceChildren(...children) {
    this.children = children
  }
}

test('batches began at the time of day that errors have', () => {
  globalThis.document = { createElement: () => new Part() }
  const at = Date.UTC(2026, 10, 20, 22, 30, 1, 50)
  const timeline = new Timeline({ batches: [{ n: 1, i: 1, why: 'full', rows: 1, taken: at * 1000, run: 1, end: 2, split: 3, requests: [[1, 1]] }] })
  timeline.details.open = true
  timeline.fill(true)
  assert.equal(timeline.table.children[0].children[0].children[0], '07:30:01.050')
  assert.equal(clock(at), '07:30:01')
})
