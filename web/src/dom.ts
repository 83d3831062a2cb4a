// Elements without a framework. Text is always set as text, never as HTML.

type Child = Node | string | null | undefined | false
type Attributes = Record<string, string | number | boolean | ((e: Event) => void) | undefined>

export function h<K extends keyof HTMLElementTagNameMap>(tag: K, attributes: Attributes = {}, ...children: Child[]): HTMLElementTagNameMap[K] {
  const e = document.createElement(tag)
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === 'function') e.addEventListener(name, value)
    else if (value === true) e.setAttribute(name, '')
    else if (value !== false && value !== undefined) e.setAttribute(name, String(value))
  }
  for (const c of children) if (c) e.append(c)
  return e
}

// text changes an element only if it says something else.
export function text(e: Element, value: string): void {
  if (e.textContent !== value) e.textContent = value
}

export function attribute(e: Element, name: string, value: string): void {
  if (e.getAttribute(name) !== value) e.setAttribute(name, value)
}
