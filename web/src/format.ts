// Numbers as people read them.

export function count(n: number): string {
  if (!Number.isFinite(n)) return '–'
  return Math.round(n).toLocaleString('en')
}

export function rate(n: number): string {
  if (!Number.isFinite(n)) return '–'
  if (n === 0) return '0'
  if (n < 10) return n.toFixed(1)
  return Math.round(n).toLocaleString('en')
}

export function ms(n: number): string {
  if (!Number.isFinite(n)) return '–'
  if (n === 0) return '0 ms'
  if (n < 0.995) return n.toFixed(2) + ' ms'
  if (n < 9.95) return n.toFixed(1) + ' ms'
  if (n < 1000) return Math.round(n) + ' ms'
  return (n / 1000).toFixed(n < 9950 ? 1 : 0) + ' s'
}

export function bytes(n: number): string {
  if (n <= 0) return '0 B'
  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB']
  let i = 0
  while (n >= 1024 && i < units.length - 1) {
    n /= 1024
    i++
  }
  return (n < 10 && i > 0 ? n.toFixed(1) : Math.round(n)) + ' ' + units[i]
}

export function clock(at: number): string {
  return new Date(at).toLocaleTimeString('en-GB')
}
