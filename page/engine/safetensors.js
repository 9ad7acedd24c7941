// A checkpoint that training/checkpoint.py opens: a safetensors file of the weights, with a header.

import { countOf } from "./shapes.js";

const FORMAT = "glassgpt 1"; // of training/checkpoint.py

/** @param header plain data for the Header of training/checkpoint.py
 * @param shapes [name, shape] of each weight, in the order of `weights`
 * @returns the bytes of the file: the length of its table, the table, the numbers */
export function checkpoint(header, shapes, weights) {
  const encoder = new TextEncoder(), text = JSON.stringify(header);
  const bytes = new Uint8Array(weights.buffer, weights.byteOffset, weights.byteLength);
  const table = {};
  let at = 0;
  for (const tensor of shapes) {
    const [name, shape] = tensor, offsets = [at, at += 4 * countOf(tensor)];
    table[`model.${name}`] = { dtype: "F32", shape, data_offsets: offsets };
  }
  const sum = Object.keys(table).sort().reduce(
    (crc, name) => crc32(bytes.subarray(...table[name].data_offsets), crc),
    crc32(encoder.encode(text)));
  table.__metadata__ = { format: FORMAT, header: text, checksum: String(sum) };
  const inside = encoder.encode(JSON.stringify(table));
  const start = 8 + 8 * Math.ceil(inside.length / 8); // numbers are aligned to eight bytes
  const file = new Uint8Array(start + bytes.length).fill(32, 0, start);
  new DataView(file.buffer).setBigUint64(0, BigInt(start - 8), true);
  file.set(inside, 8);
  file.set(bytes, start);
  return file;
}

const remainders = Uint32Array.from({ length: 256 }, (_, byte) => {
  for (let i = 0; i < 8; i++) byte = byte & 1 ? (byte >>> 1) ^ 0xedb88320 : byte >>> 1;
  return byte;
});

/** The CRC-32 of bytes that follow others whose CRC-32 is `crc`, as in zlib. */
function crc32(bytes, crc = 0) {
  crc = ~crc;
  for (const byte of bytes) crc = (crc >>> 8) ^ remainders[(crc ^ byte) & 255];
  return ~crc >>> 0;
}
