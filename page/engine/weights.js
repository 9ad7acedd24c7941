// The weights of a snapshot, as page/weights.py packs them.

import { range } from "./numbers.js";

export const bytesOf = (base64) => Uint8Array.fromBase64?.(base64) ??
  Uint8Array.from(atob(base64), (char) => char.charCodeAt(0));

export const floatsOf = (base64) => new Float32Array(bytesOf(base64).buffer);

// Every number in half precision, at the place that its 16 bits name.
const halves = Float32Array.from({ length: 65536 }, (_, bits) => {
  const exponent = (bits >> 10) & 31;
  const fraction = bits & 1023;
  const size = exponent ? (1 + fraction / 1024) * 2 ** (exponent - 15) : fraction * 2 ** -24;
  return bits >> 15 ? -size : size;
});

/** Write the weights into an array of zeros. `shapes` are [name, shape] of each tensor in order. */
export function unpackWeights(bytes, eightBits, shapes, weights) {
  const view = new DataView(bytes.buffer, bytes.byteOffset);
  let at = 0; // in the bytes
  let start = 0; // of a tensor, in the weights
  for (const [, shape] of shapes) {
    const width = shape.at(-1), count = shape.length === 2 ? shape[0] : 1, there = at;
    at += Math.ceil(count / 8);
    const rows = range(count).filter((r) => (bytes[there + (r >> 3)] >> (r & 7)) & 1);
    if (eightBits && shape.length === 2) {
      const scales = rows.map((_, i) => view.getFloat32(at + 4 * i, true));
      at += 4 * rows.length;
      rows.forEach((r, i) => {
        const to = start + r * width;
        for (let k = 0; k < width; k++) weights[to + k] = ((bytes[at++] << 24) >> 24) * scales[i];
      });
    } else {
      for (const r of rows) {
        const to = start + r * width;
        for (let k = 0; k < width; k++, at += 2) {
          weights[to + k] = halves[bytes[at] | (bytes[at + 1] << 8)];
        }
      }
    }
    start += count * width;
  }
}
