// Why batches close: the names of the metrics, what they mean, and a sign for each that can be
// told from the others by its shape alone. Paths are in a box of 12 by 12.

export interface Reason {
  means: string
  path: string
  fill: boolean // filled, otherwise drawn as a line
}

export const reasons: Record<string, Reason> = {
  alone: { means: 'the model does not combine requests', path: 'M6 2v8', fill: false },
  full: { means: 'the maximum size is reached', path: 'M1 1h10v10H1z', fill: true },
  preferred: { means: 'a preferred size is reached', path: 'M6 0l6 6-6 6-6-6z', fill: true },
  unfit: { means: 'the next request has another shape, or does not fit', path: 'M1 1h5v4h5v6M1 1v10', fill: false },
  waited: { means: 'the oldest request has waited for the maximum delay', path: 'M6 1a5 5 0 1 0 .01 0M6 3v3l2.5 1.5', fill: false },
  idle: { means: 'an instance is free, and the policy does not hold requests', path: 'M2 1l9 5-9 5z', fill: true },
  closing: { means: 'no more requests will arrive', path: 'M1 1l10 10M11 1L1 11', fill: false },
  efficient: { means: 'the size with the best throughput is reached', path: 'M6 1l5 10H1z', fill: true },
  gathered: { means: 'the clients that it was held for have returned, or are not expected any longer', path: 'M1 2l4 4-4 4M11 2L7 6l4 4', fill: false },
  burst: { means: 'the burst of requests that it was held for has arrived', path: 'M6 0v12M1 3l10 6M11 3L1 9', fill: false },
  shared: { means: 'the remaining requests are for other instances', path: 'M1 1h4v10H1zM7 1h4v10H7z', fill: true },
  cut: { means: 'several smaller batches are faster than one', path: 'M1 4h10M1 8h10M9 0L3 12', fill: false },
  retest: { means: 'a size that is expected to be slower is measured again', path: 'M10.5 4A5 5 0 1 0 11 7M11 1v3.5H7.5', fill: false },
  padded: { means: 'requests of other shapes were padded to join it', path: 'M1 1h10v10H1zM1 6h10M6 6v5', fill: false },
}

const unknown: Reason = { means: '', path: 'M1 6h10', fill: false }

export function reason(name: string): Reason {
  return reasons[name] ?? unknown
}

// sign returns the sign of a reason for a legend.
export function sign(name: string): SVGSVGElement {
  const ns = 'http://www.w3.org/2000/svg'
  const svg = document.createElementNS(ns, 'svg')
  svg.setAttribute('viewBox', '-1 -1 14 14')
  svg.setAttribute('class', reason(name).fill ? 'sign filled' : 'sign')
  svg.setAttribute('aria-hidden', 'true')
  const path = document.createElementNS(ns, 'path')
  path.setAttribute('d', reason(name).path)
  svg.append(path)
  return svg
}
