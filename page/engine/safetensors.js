// A checkpoint of training/checkpoint.py: a safetensors file of the weights, with a header.

import { Engine } from "./engine.js";
import { countOf, shapesOf } from "./shapes.js";
import { labelsOf } from "./tokenizer.js";

const FORMAT = "glassgpt 1"; // of training/checkpoint.py

/** @param text a Header of training/checkpoint.py, in JSON
 * @param shapes [name, shape] of each weight, in the order of `weights`
 * @returns the bytes of the file: the length of its table, the table, the numbers */
export function checkpoint(text, shapes, weights) {
  const bytes = new Uint8Array(weights.buffer, weights.byteOffset, weights.byteLength);
  const table = {};
  let at = 0;
  for (const tensor of shapes) {
    const [name, shape] = tensor, offsets = [at, at += 4 * countOf(tensor)];
    table[`model.${name}`] = { dtype: "F32", shape, data_offsets: offsets };
  }
  table.__metadata__ = { format: FORMAT, header: text, checksum: checksum(text, table, bytes) };
  const inside = new TextEncoder().encode(JSON.stringify(table));
  const start = 8 + 8 * Math.ceil(inside.length / 8); // numbers are aligned to eight bytes
  const file = new Uint8Array(start + bytes.length).fill(32, 0, start);
  new DataView(file.buffer).setBigUint64(0, BigInt(start - 8), true);
  file.set(inside, 8);
  file.set(bytes, start);
  return file;
}

/** Read the bytes of a file, and check that the page can compute the model in it.
 *
 * @param known {defaults, supported, ngram_rows} of page/playground/__init__.py
 * @returns {text, weights}, of the header and of the model alone
 * @throws Error that says why it cannot be opened */
export function readCheckpoint(file, known) {
  let table, bytes;
  try {
    const start = 8 + Number(new DataView(file.buffer).getBigUint64(0, true));
    table = JSON.parse(new TextDecoder().decode(file.subarray(8, start)));
    bytes = file.subarray(start);
  } catch {
    throw new Error("it is not a safetensors file, or not all of it");
  }
  const { format, header: text, checksum: expected } = table.__metadata__ ?? {};
  if (format !== FORMAT) throw new Error(`it is not a checkpoint of this version (${FORMAT})`);
  if (checksum(text, table, bytes) !== expected) {
    throw new Error("its checksum is wrong: the file is damaged, or not all of it");
  }
  const { config: { model }, shapes } = modelOf(text, known);
  const weights = new Float32Array(shapes.reduce((sum, tensor) => sum + countOf(tensor), 0));
  let at = 0;
  for (const tensor of shapes) {
    const name = `model.${tensor[0]}`, { dtype, shape, data_offsets } = table[name] ?? {};
    if (dtype !== "F32" || `${shape}` !== `${tensor[1]}`) {
      throw new Error(`${name} is ${shape ? `${dtype} (${shape})` : "absent"}, expected F32 (${tensor[1]})`);
    }
    weights.set(new Float32Array(bytes.slice(...data_offsets).buffer), at);
    at += countOf(tensor);
  }
  new Engine(model, shapes); // which takes the memory that the model needs
  return { text, weights };
}

/** Return the {header, config, vocab, shapes} of a checkpoint's header, if the page knows such models.
 * A missing field has its default. */
export function modelOf(text, { defaults, omitted, supported, ngram_rows }) {
  const header = JSON.parse(text);
  const config = Object.fromEntries(Object.entries(defaults).map(([section, fields]) =>
    [section, { ...fields, ...header.config[section] }]));
  for (const [key, value] of Object.entries(config.model)) {
    if (!(key in defaults.model) || !(supported[key]?.includes(value) ?? true)) {
      throw new Error(`the page does not know model.${key} ${value}`);
    }
  }
  config.train.schedule = "constant"; // a page may train on
  for (const [key, value] of Object.entries(omitted[config.train.optimizer])) config.train[key] ??= value;
  const vocab = labelsOf(header.tokenizer);
  return { header, config, vocab, shapes: shapesOf(config.model, vocab.length, ngram_rows) };
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

/** The CRC-32 of a header and of the tensors of a table, sorted by name. */
function checksum(header, { __metadata__, ...tensors }, bytes) {
  return String(Object.keys(tensors).sort().reduce(
    (crc, name) => crc32(bytes.subarray(...tensors[name].data_offsets), crc),
    crc32(new TextEncoder().encode(header))));
}
