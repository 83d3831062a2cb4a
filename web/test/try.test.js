import assert from 'node:assert/strict'
import { test } from 'node:test'
import { runnerImport } from 'vite'

const { TryIt, parts } = (await runnerImport('./src/try.ts')).module

// A Part is as much of an element as the form needs.
class Part {
  listeners = {}
  children = []
  value = ''

  constructor(tag) {
    this.tag = tag
  }

  setAttribute(name, value) {
    if (name === 'value') this.value = value
  }

  addEventListener(name, listener) {
    this.listeners[name] = listener
  }

  append(...children) {
    this.children.push(...children)
  }

  replaceChildren(...children) {
    this.children = children
  }

  get textContent() {
    return this.children.map(c => c.textContent ?? c).join('')
  }

  set textContent(value) {
    this.children = [value]
  }

  // all returns the elements below it that have a tag.
  all(tag) {
    return this.children.flatMap(c => (c instanceof Part ? [...(c.tag === tag ? [c] : []), ...c.all(tag)] : []))
  }
}

const settled = () => new Promise(done => setImmediate(done))

// open shows the form of a model whose metadata has versions. It returns the paths that are
// requested, the form's elements, and a function for the code of a client.
async function open(address, version, versions, datatype = 'INT32') {
  const asked = []
  globalThis.document = { createElement: tag => new Part(tag) }
  globalThis.location = new URL(address)
  globalThis.fetch = async path => {
    asked.push(path)
    return Response.json({ name: 'm', versions, inputs: [{ name: 'x', datatype, shape: [-1, 2] }], outputs: [] })
  }
  const { element } = new TryIt('m', version)
  await settled()
  const code = client => {
    element.all('button').find(b => b.textContent === client).listeners.click()
    return element.all('pre').at(-1).textContent
  }
  return { asked, element, code }
}

test('the form asks for the version of its page', async () => {
  const { asked, element } = await open('http://localhost:8000/#/m/1', '1', ['1', '2'])
  element.all('form')[0].listeners.submit({ preventDefault() {} })
  await settled()
  assert.deepEqual(asked, ['v2/models/m/versions/1', 'v2/models/m/versions/1/infer'])
})

test('the form of a page without a version asks for the default one', async () => {
  const { asked, element, code } = await open('http://localhost:8000/#/m', '', ['1', '2'])
  element.all('form')[0].listeners.submit({ preventDefault() {} })
  await settled()
  assert.deepEqual(asked, ['v2/models/m', 'v2/models/m/infer'])
  assert.equal(code('shoal'), 'shoal infer m --random --url http://localhost:8000')
})

test('the code for other clients names the version', async () => {
  const { code } = await open('http://localhost:8000/#/m/1', '1', ['1', '2'])
  assert.match(code('curl'), /^curl http:\/\/localhost:8000\/v2\/models\/m\/versions\/1\/infer -d '/)
  assert.match(code('Python'), /shoal\.load\("m", url="http:\/\/localhost:8000", version="1"\)/)
  assert.equal(code('shoal'), 'shoal infer m --model-version 1 --random --url http://localhost:8000')
})

for (const versions of [['1'], ['1', 'stable']])
  test('the code is short if the model has one version: ' + versions, async () => {
    const { code } = await open('http://localhost:8000/#/m/1', '1', versions)
    assert.match(code('curl'), /^curl http:\/\/localhost:8000\/v2\/models\/m\/infer -d '/)
    assert.match(code('Python'), /shoal\.load\("m", url="http:\/\/localhost:8000"\)/)
    assert.equal(code('shoal'), 'shoal infer m --random --url http://localhost:8000')
  })

test('the code uses TLS if the page does, and the path of a proxy', async () => {
  const { code } = await open('https://example.org:8443/models/#/m/1', '1', ['1'])
  assert.match(code('curl'), /^curl https:\/\/example\.org:8443\/models\/v2\//)
  assert.match(code('Python'), /url="https:\/\/example\.org:8443\/models"/)
  assert.equal(code('shoal'), 'shoal infer m --random --url https://example.org:8443/models')
})

test('whole numbers of 64 bits are sent and shown as they are', async () => {
  const { element, code } = await open('http://localhost:8000/#/m', '', ['1'], 'INT64')
  let sent = ''
  globalThis.fetch = async (_, request) => {
    sent = request.body
    return new Response('{"outputs": [{"name": "y", "data": [9007199254740993, -9223372036854775808, "9007199254740993", 1.5]}]}')
  }
  const [data] = element.all('textarea')
  data.value = '9007199254740993,\n -9223372036854775808'
  data.listeners.input()
  const want = '{"inputs":[{"name":"x","datatype":"INT64","shape":[1,2],"data":[9007199254740993,-9223372036854775808]}]}'
  assert.ok(code('curl').endsWith(` -d '${want}'`), code('curl'))
  element.all('form')[0].listeners.submit({ preventDefault() {} })
  await settled()
  assert.equal(sent, want)
  const answer = element.all('pre').map(p => p.textContent).find(t => t.startsWith('200'))
  assert.match(answer, /9007199254740993, -9223372036854775808, "9007199254740993", 1\.5 \]/)
})

test('strings are sent with their spaces, and data that is no list is not sent', async () => {
  const { element } = await open('http://localhost:8000/#/m', '', ['1'], 'BYTES')
  const sent = []
  globalThis.fetch = async (_, request) => {
    sent.push(JSON.parse(request.body).inputs[0].data)
    return Response.json({})
  }
  const [data] = element.all('textarea')
  for (data.value of [String.raw`"a \" 1  2", "b\\"`, '"a', '1], "more": [2']) {
    element.all('form')[0].listeners.submit({ preventDefault() {} })
    await settled()
  }
  assert.deepEqual(sent, [['a " 1  2', 'b\\']])
})

test('the Python code has texts for an input of texts', async () => {
  const { code } = await open('http://localhost:8000/#/m', '', ['1'], 'BYTES')
  assert.match(code('Python'), /"x": np\.full\(\[1, 2\], "text", dtype=object\),/)
  const { code: of } = await open('http://localhost:8000/#/m', '', ['1'], 'FP16')
  assert.match(of('Python'), /"x": np\.zeros\(\[1, 2\], dtype=np\.float16\),/)
})

test('an address with a % that begins no character is taken as it is', () => {
  assert.deepEqual(parts('#/a%20b/1'), ['#', 'a b', '1'])
  assert.deepEqual(parts('#/100%/1'), ['#', '100%', '1'])
})
