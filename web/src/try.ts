// A form made from a model's metadata, and the same request for other clients.

import { h, text } from './dom.ts'
import { ms } from './format.ts'

interface Tensor {
  name: string
  datatype: string
  shape: number[]
}

interface Metadata {
  name: string
  versions: string[] | null // those that serve, and their labels
  inputs: Tensor[]
  outputs: Tensor[]
}

interface Field {
  tensor: Tensor
  shape: HTMLInputElement
  data: HTMLTextAreaElement
}

// maxFilled is how many elements the page fills in: a text field with more is slow.
const maxFilled = 4096

// tokens are the strings, numbers and spaces of valid JSON.
const tokens = /"[^"\\]*(?:\\.[^"\\]*)*"|-?\d[\d.eE+-]*|\s+/g

// mark begins strings that are whole numbers which JavaScript would round.
const mark = '\ue000'
const marked = /"\ue000(-?\d+)"/g

// parts returns the parts of the address of a page. One with a % that begins no character is taken
// as it is.
export function parts(hash: string): string[] {
  return hash.split('/').map(part => {
    try {
      return decodeURIComponent(part)
    } catch {
      return part
    }
  })
}

// modelPath returns the path of a version. Version '' means that the server chooses.
export function modelPath(name: string, version: string): string {
  return 'v2/models/' + encodeURIComponent(name) + (version && '/versions/' + encodeURIComponent(version))
}

export class TryIt {
  readonly element: HTMLElement
  private readonly body = h('div')
  private readonly answer = h('pre', { class: 'answer', 'aria-live': 'polite', tabindex: 0, 'aria-label': 'Response' })
  private readonly snippets = h('div')
  private fields: Field[] = []
  private client = 'curl'
  private named = '' // the version in the code of clients; '' if the model has only one

  constructor(
    private readonly name: string,
    private readonly version: string,
  ) {
    this.answer.hidden = true
    this.element = h('section', { 'aria-labelledby': 'try-title' }, h('h3', { id: 'try-title' }, 'Try it'), this.body, this.answer, this.snippets)
    void this.load()
  }

  private async load(): Promise<void> {
    try {
      const response = await fetch(modelPath(this.name, this.version))
      const m = (await response.json()) as Metadata & { error?: string }
      if (!response.ok) throw new Error(m.error ?? response.statusText)
      this.build(m)
    } catch (e) {
      this.body.replaceChildren(h('p', { class: 'note' }, 'The metadata of the model could not be read: ' + (e as Error).message))
    }
  }

  private build(m: Metadata): void {
    const versions = (m.versions ?? []).filter(v => /^\d+$/.test(v))
    this.named = versions.length > 1 ? this.version : ''
    this.fields = m.inputs.map((tensor, i) => {
      const shape = tensor.shape.map(d => (d < 0 ? 1 : d))
      const f: Field = {
        tensor,
        shape: h('input', { id: 'shape' + i, value: shape.join(', '), inputmode: 'numeric', autocomplete: 'off', change: () => this.fill(f) }),
        data: h('textarea', { id: 'data' + i, rows: 3, spellcheck: 'false', input: () => this.write() }),
      }
      this.fill(f)
      return f
    })
    this.body.replaceChildren(
      h(
        'form',
        { submit: e => void this.send(e) },
        ...this.fields.map((f, i) =>
          h(
            'fieldset',
            {},
            h('legend', {}, f.tensor.name, ' ', h('span', { class: 'muted' }, f.tensor.datatype)),
            h('label', { for: 'shape' + i }, 'Shape'),
            f.shape,
            h('label', { for: 'data' + i }, 'Data'),
            f.data,
          ),
        ),
        h('button', { type: 'submit', class: 'primary' }, 'Send'),
      ),
    )
    this.write()
  }

  private shapeOf(f: Field): number[] {
    return f.shape.value.split(/[\s,]+/).filter(Boolean).map(Number)
  }

  private fill(f: Field): void {
    const n = this.shapeOf(f).reduce((p, d) => p * d, 1)
    if (!(n >= 0) || n > maxFilled) {
      f.data.value = ''
      f.data.placeholder = 'too many elements to fill in: paste them, separated by commas'
    } else f.data.value = Array.from({ length: n }, () => sample(f.tensor.datatype)).join(', ')
    this.write()
  }

  // request returns the body of the request. It has numbers as they were written: those of 64 bits
  // do not fit into JavaScript's.
  private request(): string {
    const inputs = this.fields.map(f => {
      JSON.parse('[' + f.data.value + ']') // or an error
      const data = f.data.value.replace(tokens, t => (/^\s/.test(t) ? '' : t))
      const head = JSON.stringify({ name: f.tensor.name, datatype: f.tensor.datatype, shape: this.shapeOf(f) })
      return head.slice(0, -1) + ',"data":[' + data + ']}'
    })
    return '{"inputs":[' + inputs.join(',') + ']}'
  }

  private async send(e: Event): Promise<void> {
    e.preventDefault()
    this.answer.hidden = false
    text(this.answer, 'waiting …')
    const began = performance.now()
    try {
      const response = await fetch(modelPath(this.name, this.version) + '/infer', { method: 'POST', headers: { 'Content-Type': 'application/json' }, body: this.request() })
      const body = await response.text()
      let shown = body
      try {
        JSON.parse(body) // or an error
        const whole = body.replace(tokens, t => (/^-?\d{16,}$/.test(t) ? `"${mark}${t}"` : t))
        shown = JSON.stringify(JSON.parse(whole), (_, v) => (Array.isArray(v) && v.length > 64 ? [...v.slice(0, 64), `… ${v.length - 64} more`] : v), 1).replace(/\n\s+(?=[-\d"\]…])/g, ' ')
        shown = shown.replace(marked, '$1')
      } catch {
        // it is shown as it came
      }
      text(this.answer, `${response.status} after ${ms(performance.now() - began)}\n${shown}`)
    } catch (e) {
      text(this.answer, (e as Error).message)
    }
  }

  private write(): void {
    if (this.fields.length === 0) return
    let body: string
    try {
      body = this.request()
    } catch {
      body = '{"inputs":[…]}'
    }
    if (body.length > 2000) body = body.replace(/"data":\[[^\]]{60,}\]/g, '"data":[…]')
    const base = location.href.replace(/[#?].*$/, '').replace(/\/$/, '')
    const python = this.fields.map(f => `    "${f.tensor.name}": ${numpy(f.tensor.datatype, this.shapeOf(f).join(', '))},`).join('\n')
    const all: Record<string, string> = {
      curl: `curl ${base}/${modelPath(this.name, this.named)}/infer -d '${body.replaceAll("'", "'\\''")}'`,
      Python: `import numpy as np\nimport shoal\n\nmodel = shoal.load("${this.name}", url="${base}"${this.named && `, version="${this.named}"`})\nprint(model.run({\n${python}\n}))`,
      shoal: `shoal infer ${this.name}${this.named && ' --model-version ' + this.named} --random --url ${base}`,
    }
    const pre = h('pre', { tabindex: 0, 'aria-label': 'Client code' }, all[this.client] ?? '')
    this.snippets.replaceChildren(
      h(
        'div',
        { class: 'bar' },
        h(
          'div',
          { class: 'buttons', role: 'group', 'aria-label': 'Client' },
          ...Object.keys(all).map(name =>
            h('button', { type: 'button', 'aria-pressed': String(name === this.client), click: () => ((this.client = name), this.write()) }, name),
          ),
        ),
        h('button', { type: 'button', click: e => void copy(e.target as HTMLElement, pre.textContent ?? '') }, 'Copy'),
      ),
      pre,
    )
  }
}

async function copy(button: HTMLElement, value: string): Promise<void> {
  try {
    await navigator.clipboard.writeText(value)
    text(button, 'Copied')
  } catch {
    text(button, 'Select the text to copy it') // a page without TLS may not write to the clipboard
  }
  setTimeout(() => text(button, 'Copy'), 2000)
}

function sample(type: string): string {
  switch (type) {
    case 'BYTES':
      return '"text"'
    case 'BOOL':
      return Math.random() < 0.5 ? 'true' : 'false'
    case 'FP16':
    case 'FP32':
    case 'FP64':
    case 'BF16':
      return Math.random().toFixed(2)
  }
  return String(Math.floor(Math.random() * 10))
}

// numpy returns an array of that type and shape.
function numpy(type: string, shape: string): string {
  if (type === 'BYTES') return `np.full([${shape}], "text", dtype=object)`
  const name = type.toLowerCase().replace(/^fp/, 'float').replace(/^bf16$/, 'float32').replace(/^bool$/, 'bool_')
  return `np.zeros([${shape}], dtype=np.${name})`
}
