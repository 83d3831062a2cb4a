import 'uplot/dist/uPlot.min.css'
import './style.css'
import { h, text } from './dom.ts'
import { bytes, clock, count } from './format.ts'
import { ModelView } from './model.ts'
import { Overview } from './overview.ts'
import { Store, Stream } from './stream.ts'
import { parts } from './try.ts'

// A View is what the address names.
interface View {
  readonly element: HTMLElement
  draw(): void
  destroy?(): void // frees what the browser does not, when the reader goes on
}

const main = document.getElementById('main')!
const server = document.getElementById('server')!
const status = document.getElementById('stream')!
const store = new Store()
let view: View | null = null
let pending = false

const stream = new Stream(store, schedule, (live, at) => {
  document.documentElement.classList.toggle('stale', !live)
  text(status, live ? 'live' : `no data since ${clock(at)}: the server has stopped, or cannot be reached`)
})

// schedule draws before the next frame, once for all events until then. A page that is not shown
// draws nothing.
function schedule(): void {
  if (pending) return
  pending = true
  requestAnimationFrame(draw)
}

function draw(): void {
  pending = false
  const began = performance.now()
  const s = store.summary
  if (s) {
    const parts = [store.version, s.draining ? 'stopping' : s.accepting ? '' : 'starting', `${count(s.in_flight)} in flight`]
    if (s.budget_bytes) parts.push(`${bytes(s.budget_used_bytes)} of ${bytes(s.budget_bytes)} for requests`)
    text(server, parts.filter(Boolean).join(' · '))
  }
  view?.draw()
  performance.measure('refresh', { start: began })
  performance.clearMeasures('refresh') // observers have received it, and the browser would keep it
}

// show opens what the address names: #/ is the list of models, #/NAME/VERSION a model.
function show(): void {
  view?.destroy?.()
  const [, name, version] = parts(location.hash)
  if (name) {
    view = new ModelView(store, name, version ?? '')
    stream.watch(name, version ?? '')
    document.title = name + ' · Shoal'
  } else {
    view = new Overview(store)
    stream.watch('', '')
    document.title = 'Shoal'
  }
  main.replaceChildren(view.element)
  draw()
}

addEventListener('hashchange', () => {
  show()
  main.focus()
})
addEventListener('resize', schedule)
matchMedia('(prefers-color-scheme: dark)').addEventListener('change', schedule)
document.querySelector('.skip')!.addEventListener('click', e => {
  e.preventDefault()
  main.focus()
})
main.append(h('p', { class: 'note' }, 'Waiting for the server.'))
show()
