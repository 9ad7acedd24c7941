// The model of a run in the page: tokenization, the weights of a snapshot, edits by name, sampling,
// and the check against PyTorch. It draws nothing except error messages.

function trouble(reason) {
  const place = document.getElementById("trouble");
  place.hidden = false;
  place.textContent =
    `Error: ${reason}. Reload the page; it requires a browser from 2024 or later.`;
}
addEventListener("error", (event) => trouble(event.message));
addEventListener("unhandledrejection", (event) => trouble(event.reason));

const data = JSON.parse(document.getElementById("data").textContent);
const { vocab, snapshots, prompt } = data;
const config = data.run.config.model;
const { n_layer: L, n_head: H, n_embd: C, block_size: B } = config;
const D = C / H;
const V = vocab.length;
const HEADS = L * H;
const LAST = snapshots.length - 1;
const TOLERANCE = 1e-4; // of a logit, relative to the largest if that is above 1

const range = (n) => [...Array(n).keys()];
const sum = (numbers) => numbers.reduce((a, b) => a + b, 0);
const largestOf = (numbers) => numbers.reduce((a, b) => Math.max(a, b), -Infinity);
const indexOfLargest = (numbers) => numbers.reduce((a, x, i) => (x > numbers[a] ? i : a), 0);

/** The indices of the largest of some numbers, largest first. */
const ranked = (numbers, count) =>
  [...numbers.keys()].sort((a, b) => numbers[b] - numbers[a] || a - b).slice(0, count);

// -------------------------------------------------------------------------------------- weights
const bytesOf = (base64) => Uint8Array.fromBase64?.(base64) ??
  Uint8Array.from(atob(base64), (char) => char.charCodeAt(0));

const floats = (base64) => new Float32Array(bytesOf(base64).buffer);

// Every number in half precision, at the place that its 16 bits name.
const halves = Float32Array.from({ length: 65536 }, (_, bits) => {
  const exponent = (bits >> 10) & 31;
  const fraction = bits & 1023;
  const size = exponent ? (1 + fraction / 1024) * 2 ** (exponent - 15) : fraction * 2 ** -24;
  return bits >> 15 ? -size : size;
});

/** The weights of a snapshot as lens/report/weights.py packs them, into an array of zeros. */
function unpackWeights(bytes, eightBits, weights) {
  const view = new DataView(bytes.buffer, bytes.byteOffset);
  let at = 0; // in the bytes
  let start = 0; // of a tensor, in the weights
  for (const [, shape] of data.shapes) {
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

const packedWeights = []; // of each snapshot shown; in the page, the last comes first
const means = []; // of each head's output, for the same snapshots

// Engines by purpose. Each keeps its last results, and computes only what changes.
const engines = {};

function engineFor(purpose, snapshot) {
  const engine = (engines[purpose] ??= new Engine(config, data.shapes));
  if (engine.snapshot !== snapshot) {
    packedWeights[snapshot] ??=
      bytesOf(document.getElementsByClassName("weights")[(snapshot + 1) % (LAST + 1)].textContent);
    means[snapshot] ??= floats(snapshots[snapshot].means);
    const { eight_bits } = snapshots[snapshot];
    engine.load(snapshot, (weights) => unpackWeights(packedWeights[snapshot], eight_bits, weights),
      means[snapshot]);
    engine.snapshot = snapshot;
  }
  return engine;
}

// --------------------------------------------------------------------------------------- tokens
// A text is a list of tokens, each {id, token}; id is null for a token that the model never saw.

const { kind } = data.tokenizer;
const idOf = new Map(vocab.map((token, id) => [token, id]));
const known = (id) => ({ id, token: vocab[id] });

// Bytes that are not UTF-8 are kept as U+DC80 to U+DCFF, as with Python's surrogateescape.
const escaped = (byte) => String.fromCharCode(0xdc00 + byte);

function utf8Of(text) {
  const encoder = new TextEncoder();
  return Array.from(text).flatMap((char) => {
    const code = char.codePointAt(0);
    return code >= 0xdc80 && code <= 0xdcff ? [code - 0xdc00] : [...encoder.encode(char)];
  });
}

function textOf(bytes) {
  const decoder = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });
  let text = "";
  for (let i = 0; i < bytes.length;) {
    const lead = bytes[i];
    const length = lead < 0x80 ? 1 : lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
    try {
      text += decoder.decode(bytes.subarray(i, i + length));
      i += length;
    } catch { // not UTF-8: one byte is kept as it is
      text += escaped(lead);
      i += 1;
    }
  }
  return text;
}

// Subwords, as in data/tokenizer.py: bytes are visible characters, joined as the merges say.
const bpe = kind === "bpe" ? new (class {
  constructor({ merges, special }) {
    const bytes = range(256);
    const seen = (b) => (b > 0x20 && b < 0x7f) || (b > 0xa0 && b !== 0xad);
    const ordered = [...bytes.filter(seen), ...bytes.filter((b) => !seen(b))];
    const pairs = merges ? merges.split("\n") : [];
    let next = 0x100;
    this.charOf = bytes.map((b) => String.fromCharCode(seen(b) ? b : next++));
    this.byteOf = new Map(this.charOf.map((char, byte) => [char, byte]));
    this.rank = new Map(pairs.map((pair, i) => [pair, i]));
    const tokens = [...new Set([
      ...ordered.map((b) => this.charOf[b]), ...pairs.map((pair) => pair.replace(" ", "")),
    ])];
    this.idOf = new Map(tokens.map((token, id) => [token, id]));
    this.bytes = [...tokens.map((token) => Array.from(token, (char) => this.byteOf.get(char))),
      ...special.map(utf8Of)];
    this.words = new RegExp("'(?:s|t|re|ve|m|ll|d)| ?\\p{L}+| ?\\p{N}+|" +
      " ?[^\\p{White_Space}\\p{L}\\p{N}]+|\\p{White_Space}+(?!\\P{White_Space})|" +
      "\\p{White_Space}+", "gu");
  }

  ids(text) {
    return (text.match(this.words) ?? []).flatMap((word) => {
      const parts = utf8Of(word).map((byte) => this.charOf[byte]);
      for (;;) {
        let [first, at] = [Infinity, -1];
        for (let i = 0; i + 1 < parts.length; i++) {
          const rank = this.rank.get(`${parts[i]} ${parts[i + 1]}`) ?? Infinity;
          if (rank < first) [first, at] = [rank, i];
        }
        if (at < 0) return parts.map((part) => this.idOf.get(part));
        parts.splice(at, 2, parts[at] + parts[at + 1]);
      }
    });
  }
})(data.tokenizer) : null;

function encode(text) {
  if (kind === "char") {
    return Array.from(text, (token) => ({ id: idOf.get(token) ?? null, token }));
  }
  return (bpe ? bpe.ids(text) : utf8Of(text)).map(known);
}

function decode(tokens) {
  if (kind === "char") return tokens.map(({ token }) => token).join("");
  return textOf(Uint8Array.from(tokens.flatMap(({ id }) => (bpe ? bpe.bytes[id] : id))));
}

/** A text in the address: its characters, or ids, which the tokenizer might choose otherwise. */
const toAddress = (tokens) =>
  (kind === "char" ? decode(tokens) : tokens.map(({ id }) => id).join("."));
const fromAddress = (text) => (kind === "char" ? encode(text)
  : (text.match(/\d+/g) ?? []).filter((id) => id in vocab).map((id) => known(Number(id))));

// ---------------------------------------------------------------------------------------- edits
// An edit is a word, which also stands in the page's address:
//   L0H1=zero  L0H1=mean     the output of a head
//   L0.attn  L0.mlp          all heads of a layer; its MLP
//   hide@12                  a position that no later one attends to
//   patch@12/L1  patch@12/L1H0   a layer's input, or a head's output, from the other text
const EDIT = new RegExp("^(?:" + [/L(\d+)H(\d+)=(zero|mean)/, /L(\d+)\.(attn|mlp)/,
  /(hide|patch)@(\d+)(?:\/L(\d+)(?:H(\d+))?)?/].map(({ source }) => source).join("|") + ")$");

/** {kind, layer, head, position, instead}, or null if the word is not an edit of this model. */
function readEdit(word) {
  const match = EDIT.exec(word);
  if (!match) return null;
  const [layer, head, position] = [match[1] ?? match[4] ?? match[8], match[2] ?? match[9], match[7]]
    .map((text) => (text === undefined ? undefined : Number(text)));
  const kind = match[3] ? "head" : match[5] ?? match[6];
  const wrong = layer >= L || head >= H || position >= B ||
    (kind === "hide") !== (layer === undefined);
  return wrong ? null : { kind, layer, head, position, instead: match[3] };
}

const ofEngine = new Map(); // the engine's edits by word; the same object means no change

/** The edits in the engine's form. `other` is an engine that has computed the other text. */
function toEngine(words, other) {
  return words.flatMap((word) => {
    const { kind, layer, head, position, instead } = readEdit(word);
    if (kind === "patch") {
      const [from, width] = head === undefined
        ? [other.at[`x${layer}`], C] : [other.at[`z${layer}`] + head * D, D];
      const row = other.memory.slice(from + position * C, from + position * C + width);
      return position < other.tokens.length ? [{ layer, head, position, row }] : [];
    }
    if (!ofEngine.has(word)) {
      ofEngine.set(word, {
        head: () => [{ layer, head, off: instead }],
        attn: () => range(H).map((h) => ({ layer, head: h, off: "zero" })),
        mlp: () => [{ layer, off: "mlp" }],
        hide: () => [{ hide: position }],
      }[kind]());
    }
    return ofEngine.get(word);
  });
}

// ------------------------------------------------------------------------------------ computing
/** Let the browser handle events. (A timer would wait 4 ms; scheduler.yield starves timers.) */
const breathe = () => new Promise((resolve) => {
  const { port1, port2 } = new MessageChannel();
  port1.onmessage = () => resolve(port1.close());
  port2.postMessage(null);
});

let breath = 0; // when the browser last handled events

/** Let the browser handle events every 8 ms; return whether to continue. */
async function mayGoOn(isCurrent) {
  if (performance.now() - breath > 8) {
    await breathe();
    breath = performance.now();
  } else await null; // so that the current event finishes first
  return isCurrent();
}

/** Run an engine; return false if its result is no longer wanted. */
async function compute(engine, ids, edits, isCurrent) {
  engine.set(ids, edits);
  for (const _ of engine.compute()) if (!(await mayGoOn(isCurrent))) return false;
  return mayGoOn(isCurrent);
}

/** Replace logits (T, V) by log probabilities, in place. */
function logProbabilities(logits) {
  for (let start = 0; start < logits.length; start += V) {
    const row = logits.subarray(start, start + V), largest = largestOf(row);
    const norm = largest + Math.log(row.reduce((total, x) => total + Math.exp(x - largest), 0));
    for (let i = 0; i < V; i++) row[i] -= norm;
  }
  return logits;
}

/** Copy the results of a pass, because the engine overwrites them in the next pass. */
function passOf(engine) {
  const ids = engine.tokens;
  const T = ids.length;
  const logits = engine.take("logits", V);
  const logP = logProbabilities(logits.slice());
  const surprisal = Float64Array.from(ids, (id, t) => (t ? -logP[(t - 1) * V + id] : NaN));
  return {
    T, ids, logits, logP, surprisal,
    loss: T > 1 ? sum(surprisal.slice(1)) / (T - 1) : NaN,
    attention: range(HEADS).map((i) => engine.attention(Math.floor(i / H), i % H)),
    queries: range(L).map((l) => engine.take(`q${l}`, C)),
    keys: range(L).map((l) => engine.take(`k${l}`, C)),
  };
}

// ------------------------------------------------------------------------------------- checking
/** The engine's logits of the reference text against PyTorch's, after another text and an edit, so
 * that a row that should have been computed again would show: {error, allowed, agrees}. */
async function checkAgainstPyTorch(snapshot) {
  const engine = engineFor("check", snapshot);
  const { reference } = data;
  const middle = Math.floor(reference.length / 2);
  const other = reference.map((id, t) => (t < middle ? id : (id + 1) % V));
  const edits = [{ layer: 0, head: 0, off: "zero" }, { hide: middle }];
  await compute(engine, other, edits, () => true);
  await compute(engine, reference, [], () => true);
  const logits = engine.take("logits", V);
  const { rows, logits: packed } = snapshots[snapshot];
  const expected = floats(packed);
  let [error, largest] = [0, 0];
  rows.forEach((t, i) => {
    for (let v = 0; v < V; v++) {
      error = Math.max(error, Math.abs(logits[t * V + v] - expected[i * V + v])); // NaN stays
      largest = Math.max(largest, Math.abs(expected[i * V + v]));
    }
  });
  const allowed = TOLERANCE * Math.max(1, largest);
  return { error, allowed, agrees: error <= allowed };
}

const checks = []; // a promise for each snapshot; only one uses the engine at a time
let lastCheck = Promise.resolve();

function check(snapshot) {
  checks[snapshot] ??= lastCheck = lastCheck.then(() => checkAgainstPyTorch(snapshot));
  return checks[snapshot];
}

// ----------------------------------------------------------------------------------- generating
/** A number in [0, 1) from seed and position alone, so that what was shown is what is written. */
function chance(seed, position) {
  let x = Math.imul(seed + 1, 0x9e3779b1) ^ Math.imul(position + 1, 0x85ebca6b);
  x = Math.imul(x ^ (x >>> 15), 0x2c1b3c6d);
  x = Math.imul(x ^ (x >>> 12), 0x297a2d39);
  return ((x ^ (x >>> 15)) >>> 0) / 2 ** 32;
}

/** The next token, from a row of logits; temperature 0 takes the most likely. */
function draw(logits, { temperature, topK }, random) {
  const order = ranked(logits, topK || V);
  if (!(temperature > 0)) return order[0];
  const likelihood = order.map((id) => Math.exp((logits[id] - logits[order[0]]) / temperature));
  let left = random * sum(likelihood);
  return order[likelihood.findIndex((p) => (left -= p) < 0)] ?? order[0];
}

/** Token after token, each as {id}; null while it computes. What the model sees of a long text
 * moves on by half a window, as in sampling/generate.py; edits of positions stay behind. */
function* generate(engine, ids, settings, edits = []) {
  const text = [...ids];
  const first = windowStart(text.length - 1, B);
  for (;;) {
    const start = windowStart(text.length - 1, B);
    const there = edits.filter((edit) => start === first || !("hide" in edit || "row" in edit));
    engine.set(text.slice(start), there);
    for (const _ of engine.compute()) yield null;
    const row = engine.at.logits + (text.length - start - 1) * V;
    const logits = engine.memory.subarray(row, row + V);
    const id = draw(logits, settings, chance(settings.seed, text.length));
    text.push(id);
    yield { id };
  }
}

// ---------------------------------------------------------------------------- for the console
function read(text, { step = snapshots[LAST].step } = {}) {
  const snapshot = snapshots.findIndex((each) => each.step === step);
  if (snapshot >= 0) return { engine: engineFor("console", snapshot), ids: idsOf(text) };
  throw new RangeError(`step ${step} must be one of ${snapshots.map((s) => s.step).join(", ")}`);
}

function idsOf(text) {
  const tokens = typeof text === "string" ? encode(text) : Array.from(text, known);
  const unseen = tokens.find(({ id, token }) => id === null || token === undefined);
  if (unseen) throw new RangeError(`the model never saw ${unseen.token ?? unseen.id}`);
  return tokens.map(({ id }) => id);
}

/** The page's only global. A text is a string, or at most block_size ids; `step`, a snapshot. */
globalThis.glassgpt = Object.freeze({
  config, vocab,
  steps: snapshots.map(({ step }) => step),

  /** Logits of the next token at every position, [T][V]. */
  logits(text, options) {
    const { engine, ids } = read(text, options), logits = engine.run(ids);
    return ids.map((_, t) => [...logits.slice(t * V, (t + 1) * V)]);
  },

  /** Attention weights of a head: row t has the t + 1 weights of query t. */
  attention(text, layer, head, options) {
    const { engine, ids } = read(text, options);
    engine.run(ids);
    const weights = engine.attention(layer, head);
    return ids.map((_, t) => [...weights.slice((t * (t + 1)) / 2, ((t + 1) * (t + 2)) / 2)]);
  },

  /** Generate `count` tokens after a text of any length, and return them as a string. */
  generate(text, count, { temperature = 0, topK = 0, seed = 1337, ...options } = {}) {
    const { engine, ids } = read(text, options), found = [];
    const drawn = generate(engine, ids, { temperature, topK, seed });
    while (found.length < count) {
      const { value } = drawn.next();
      if (value) found.push(known(value.id));
    }
    return decode(found);
  },
});
