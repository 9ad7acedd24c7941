// Lists of numbers.

export const range = (n) => [...Array(n).keys()];
export const sum = (numbers) => numbers.reduce((a, b) => a + b, 0);
export const mean = (numbers) => sum(numbers) / numbers.length;
export const largestOf = (numbers) => numbers.reduce((a, b) => Math.max(a, b), -Infinity);
export const indexOfLargest = (numbers) => numbers.reduce((a, x, i) => (x > numbers[a] ? i : a), 0);

/** The indices of the largest of some numbers, largest first. */
export const ranked = (numbers, count) =>
  [...numbers.keys()].sort((a, b) => numbers[b] - numbers[a] || a - b).slice(0, count);

/** How many numbers at the start of `b` are the same in `a`. */
export function sameAtStart(a, b) {
  const apart = b.findIndex((x, i) => x !== a[i]);
  return apart < 0 ? b.length : apart;
}

/** The index of a query's first weight among a head's: row t has t + 1. */
export const triangle = (q) => (q * (q + 1)) / 2;

export const clamp = (x, low, high) => Math.min(Math.max(x, low), high);
