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
const { Store } = (await runnerImport('./src/stream.ts')).module
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

// A Part is as much of an element as a page without figures needs.
class Part {
  children = []
  attributes = {}
  style = {}

  setAttribute(name, value) {
    this.attributes[name] = value
  }

  getAttribute(name) {
    return this.attributes[name]
  }

  addEventListener() {}

  append(...children) {
    this.children.push(...children)
  }

  replaceChildren(...children) {
    this.children = children
  }

  set textContent(value) {
    this.children = [value]
  }

  get textContent() {
    return this.children.map(c => c.textContent ?? c).join('')
  }
}

test('a model that was unloaded is not ready, and has no figures', () => {
  globalThis.document = { createElement: () => new Part() }
  globalThis.fetch = async () => ({ ok: false, json: async () => ({}) })
  const store = new Store()
  const model = { name: 'm', version: '1', state: 'READY', serving: true, instances: 1, alive: 1, restarts: 0, queue: 0, memory_bytes: 0, late: 0, success: 5, failed: {}, rows: 5, batches: 5, batch_rows: 5, sizes: [5], closed: {}, latency: [5], queue_time: [5], compute: [5] }
  const view = new ModelView(store, 'm', '1')
  view.charts.length = 0 // they need a browser
  view.timeline.draw = () => {}
  store.figures({ at: 1000, in_flight: 0, unknown: {}, names: ['m/1'], models: [model] })
  view.draw()
  assert.equal(view.state.textContent, 'ready')
  assert.notEqual(view.tiles.children.length, 0)
  store.figures({ at: 1500, in_flight: 0, unknown: {}, names: [], models: [] })
  view.draw()
  assert.equal(view.reason.textContent, 'The server has no such model.')
  assert.equal(view.state.textContent, '')
  assert.equal(view.state.attributes['data-state'], '')
  assert.equal(view.tiles.children.length, 0)
  store.figures({ at: 2000, in_flight: 0, unknown: {}, names: ['m/1'], models: [model] })
  view.draw()
  assert.equal(view.state.textContent, 'ready')
  assert.notEqual(view.tiles.children.length, 0)
})
