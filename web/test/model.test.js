import assert from 'node:assert/strict'
import { mock, test } from 'node:test'
import { runnerImport } from 'vite'

// Anything is whatever the page asks of it: an element, a figure, a list without entries.
const anything = new Proxy(function () {}, {
  get: (_, name) => (name === Symbol.toPrimitive ? () => 0 : name === Symbol.iterator ? [].values : anything),
  set: () => true,
  apply: () => anything,
  construct: () => anything,
})
globalThis.document = anything
globalThis.getComputedStyle = anything
const { ModelView } = (await runnerImport('./src/model.ts')).module
globalThis.window = anything // not before: uPlot would look for the rest of a browser

test('a model is explained at once, and again after five seconds', () => {
  let now = 100
  mock.method(performance, 'now', () => now)
  const asked = []
  globalThis.fetch = async path => {
    asked.push([now, path])
    return { ok: false }
  }
  const view = new ModelView(anything, 'm', '1')
  view.charts.length = 0 // they need a browser
  for (; now < 6000; now += 100) view.draw()
  assert.deepEqual(asked.filter(([, path]) => path.endsWith('/explain')), [[100, 'v2/models/m/versions/1/explain'], [5200, 'v2/models/m/versions/1/explain']])
})
