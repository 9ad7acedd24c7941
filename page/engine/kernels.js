// The kernels of the engine: one memory for all engines, the matmul over it, softmax and
// activations. The matmul is WebAssembly with SIMD, four products per instruction, whose bytes are
// assembled here. If a browser does not run it, plain JavaScript replaces it.

// ---------------------------------------------------------------------------- an assembler
// Instructions of a stack machine, as nested lists of bytes: the operands first, then the code.
// See "Binary Format, Instructions" in the WebAssembly Core Specification.

/** An integer from 0 to 2^31 in LEB128: seven bits per byte, lowest first. */
const whole = (n) => (n < 128 ? [n] : [(n & 127) | 128, whole(n >> 7)]);
const vector = (items) => [whole(items.length), items];
const name = (text) => vector([...text].map((char) => char.charCodeAt(0)));
const section = (id, content) => [id, vector(content.flat(Infinity))];

const [I32, V128] = [0x7f, 0x7b]; // types
const constant = (n) => [0x41, whole(n)]; // below 64, since it is signed
const get = (local) => [0x20, local];
const put = (local, value) => [value, 0x21, local];
const plus = (a, b) => [a, b, 0x6a];
const minus = (a, b) => [a, b, 0x6b];
const isBelow = (a, b) => [a, b, 0x49];
const add = (local, value) => put(local, plus(get(local), value));

const ZEROS = [0xfd, 0x0c, ...new Array(16).fill(0)];
const inMemory = (offset) => [2, whole(offset)]; // aligned to 2^2 bytes
const loadFour = (address, offset) => [address, 0xfd, 0x00, inMemory(offset)];
const loadOne = (address, offset) => [address, 0xfd, 0x5c, inMemory(offset)]; // and three zeros
const addFours = (a, b) => [a, b, 0xfd, whole(0xe4)];
const multiplyFours = (a, b) => [a, b, 0xfd, whole(0xe6)];
const lane = (four, i) => [four, 0xfd, 0x1f, i];
const addFloats = (a, b) => [a, b, 0x92];
const storeFloat = (address, offset, value) => [address, value, 0x38, inMemory(offset)];

/** Run the body, which decreases `left`, while `left` is at least `step`. */
const whileAtLeast = (left, step, body) => [
  [0x02, 0x40], [0x03, 0x40], // a block, to leave, and in it a loop, to begin again
  isBelow(get(left), constant(step)), [0x0d, 1],
  body, put(left, minus(get(left), constant(step))),
  [0x0c, 0], 0x0b, 0x0b,
];

/**
 * A function that multiplies tiles of R rows by S outputs: y[r][n] = sum over k of x[r][k] w[n][k].
 * `rows` and `outputs` are multiples of a tile; the other parameters are in bytes.
 *
 * A tile has R * S sums. Each has four parts, for k = 0, 4, 8, ..., for k = 1, 5, 9, ..., and so
 * on, which are added at the end. If four does not divide the width, the rest goes to the first
 * part. The order is the same in every tile, so that a row is bitwise identical whichever rows are
 * computed with it. Sixteen registers hold a tile of 4 x 2 and its inputs; more are slower. */
function tileFunction(R, S) {
  const PARAMETERS = ["x", "w", "y", "rows", "outputs", "width", "wStride", "yStride"];
  const locals = new Map(PARAMETERS.map((each, i) => [each, i]));
  const local = (each) => locals.get(each) ?? locals.set(each, locals.size).get(each);
  const [x, w, y, rows, outputs, width, wStride, yStride] = PARAMETERS.map(local);
  const [nextX, nextY, rowsLeft, left] = ["nextX", "nextY", "rowsLeft", "left"].map(local);
  const many = (count, make) => [...Array(count).keys()].map(make);
  const xs = many(R, (r) => local(`x${r}`)); // addresses
  const ws = many(S, (s) => local(`w${s}`));
  const integers = locals.size - PARAMETERS.length;
  const four = many(R, (r) => local(`four${r}`)); // numbers from x
  const weights = local("weights"); // from w
  const sums = many(R, (r) => many(S, (s) => local(`sum${r},${s}`)));

  /** Multiply four numbers of each row, `offset` bytes after the addresses. */
  const products = (load, offset) => [
    four.map((each, r) => put(each, load(get(xs[r]), offset))),
    ws.map((address, s) => [
      put(weights, load(get(address), offset)),
      sums.map((row, r) => put(row[s],
        addFours(get(row[s]), multiplyFours(get(four[r]), get(weights))))),
    ]),
  ];
  const onward = (bytes) => [...xs, ...ws].map((address) => add(address, constant(bytes)));
  const total = (sum) => addFloats(
    addFloats(lane(get(sum), 0), lane(get(sum), 1)),
    addFloats(lane(get(sum), 2), lane(get(sum), 3)));
  const tile = [
    sums.flat().map((sum) => put(sum, ZEROS)),
    xs.map((address) => [put(address, get(nextX)), add(nextX, get(width))]),
    ws.map((address, s) => put(address, s ? plus(get(ws[s - 1]), get(wStride)) : get(w))),
    put(left, get(width)),
    whileAtLeast(left, 32, [products(loadFour, 0), products(loadFour, 16), onward(32)]),
    whileAtLeast(left, 16, [products(loadFour, 0), onward(16)]),
    whileAtLeast(left, 4, [products(loadOne, 0), onward(4)]),
    sums.map((row) => [
      row.map((sum, s) => storeFloat(get(nextY), 4 * s, total(sum))), add(nextY, get(yStride)),
    ]),
  ];
  const body = whileAtLeast(outputs, S, [ // weights are read once, and used for all rows
    put(nextX, get(x)), put(nextY, get(y)), put(rowsLeft, get(rows)),
    whileAtLeast(rowsLeft, R, tile),
    many(S, () => add(w, get(wStride))), add(y, constant(4 * S)),
  ]);
  const vectors = locals.size - PARAMETERS.length - integers;
  const types = vector([[integers, I32], [vectors, V128]]);
  return [types, body, 0x0b];
}

/** A module that imports a memory and exports a function for each [R, S]. */
function assemble(tiles) {
  const functions = tiles.map(([R, S]) => tileFunction(R, S).flat(Infinity));
  return Uint8Array.from([
    [0, 0x61, 0x73, 0x6d, 1, 0, 0, 0], // "\0asm", version 1
    section(1, vector([[0x60, vector(new Array(8).fill(I32)), vector([])]])), // a type
    section(2, vector([[name("js"), name("memory"), 2, 0, 0]])),
    section(3, vector(tiles.map(() => 0))), // each is of this type
    section(7, vector(tiles.map(([R, S], i) => [name(`${R}x${S}`), 0, i]))),
    section(10, vector(functions.map(vector))),
  ].flat(Infinity));
}

// --------------------------------------------------------------------------------- matmuls
/** The memory of all engines, which grows as needed, and the matmul over it:
 *
 *     multiply(x, w, y, rows, K, N, stride)
 *
 * writes x W^T, from (rows, K) to (rows, N), at y; row n of W begins `stride` numbers after the one
 * before. `floats` is a new array after each `reserve`. */
class Arena {
  constructor() {
    this.end = 0;
    this.floats = new Float32Array(0);
    this.multiply = this.multiplyPlainly;
    try {
      const memory = new WebAssembly.Memory({ initial: 0 });
      const module = new WebAssembly.Module(assemble([[4, 2], [1, 4], [1, 1]]));
      const { exports } = new WebAssembly.Instance(module, { js: { memory } });
      this.tiles = [exports["4x2"], exports["1x4"], exports["1x1"]];
      this.memory = memory;
      this.multiply = this.multiplyInTiles;
    } catch {} // WebAssembly is missing, has no SIMD, or is not allowed
  }

  /** Reserve `count` numbers, all zero, and return where they begin. */
  reserve(count) {
    const start = this.end;
    this.end += 16 * Math.ceil(count / 16);
    if (this.memory) {
      const missing = 4 * this.end - this.memory.buffer.byteLength;
      if (missing > 0) this.memory.grow(Math.ceil(missing / 65536));
      this.floats = new Float32Array(this.memory.buffer);
    } else {
      const before = this.floats;
      this.floats = new Float32Array(this.end);
      this.floats.set(before);
    }
    return start;
  }

  multiplyInTiles(x, w, y, rows, K, N, stride) {
    const [fourByTwo, oneByFour, one] = this.tiles;
    const high = rows & ~3, even = N & ~1, wide = N & ~3;
    const [a, b, c] = [4 * K, 4 * stride, 4 * N]; // bytes from row to row
    if (high) {
      fourByTwo(4 * x, 4 * w, 4 * y, high, even, a, b, c);
      if (even < N) one(4 * x, 4 * w + even * b, 4 * (y + even), high, N - even, a, b, c);
    }
    if (high === rows) return;
    x = 4 * x + high * a;
    y = 4 * y + high * c;
    oneByFour(x, 4 * w, y, rows - high, wide, a, b, c);
    if (wide < N) one(x, 4 * w + wide * b, y + 4 * wide, rows - high, N - wide, a, b, c);
  }

  multiplyPlainly(x, w, y, rows, K, N, stride) {
    const { floats } = this;
    for (let r = 0; r < rows; r++) {
      for (let n = 0; n < N; n++) {
        const [from, weights] = [x + r * K, w + n * stride];
        let sum = 0;
        for (let k = 0; k < K; k++) sum += floats[from + k] * floats[weights + k];
        floats[y + r * N + n] = sum;
      }
    }
  }
}

export const arena = new Arena();

// ------------------------------------------------------- products, softmax and activations
export function product(a, b) {
  let sum = 0;
  for (let i = 0; i < a.length; i++) sum += a[i] * b[i];
  return sum;
}

/** Compute the softmax of `count` scores, each times `scale`, in place. */
export function softmax(memory, row, count, scale = 1) {
  let largest = -Infinity;
  let total = 0;
  for (let s = 0; s < count; s++) largest = Math.max(largest, memory[row + s]);
  for (let s = 0; s < count; s++) {
    const power = Math.exp((memory[row + s] - largest) * scale);
    memory[row + s] = power;
    total += power;
  }
  for (let s = 0; s < count; s++) memory[row + s] /= total;
}

/** The MLP's nonlinearities. */
export const ACTIVATIONS = {
  gelu: (u) => 0.5 * u * (1 + erf(u * Math.SQRT1_2)),
  // GPT-2's approximation of GELU (Hendrycks & Gimpel 2016, section 2)
  gelu_tanh: (u) => 0.5 * u * (1 + Math.tanh(Math.sqrt(2 / Math.PI) * (u + 0.044715 * u ** 3))),
  relu: (u) => Math.max(u, 0),
  relu2: (u) => (u > 0 ? u * u : 0),
};

/** Apply the nonlinearity to `count` numbers at `up`, in place. */
export function activate(name, memory, up, count) {
  const activation = ACTIVATIONS[name] ?? (() => NaN);
  for (let i = 0; i < count; i++) memory[up + i] = activation(memory[up + i]);
}

/** The error function, by its series without cancellation (Abramowitz & Stegun 1964, 7.1.6). */
function erf(x) {
  const square = x * x;
  if (square > 36) return Math.sign(x);
  let term = x;
  let sum = x;
  for (let n = 1; Math.abs(term) > 1e-17 * Math.abs(sum); n++) {
    term *= (2 * square) / (2 * n + 1);
    sum += term;
  }
  return (2 / Math.sqrt(Math.PI)) * Math.exp(-square) * sum;
}
