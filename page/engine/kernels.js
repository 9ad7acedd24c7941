// The kernels of the engine: one memory for all engines, and over it the matmuls, softmax and
// activations. They are WebAssembly with SIMD, four numbers per instruction, whose bytes are
// assembled here.

import { range } from "./numbers.js";

// ---------------------------------------------------------------------------- an assembler
// Instructions of a stack machine, as nested lists of bytes: the operands first, then the code.
// See "Binary Format, Instructions" in the WebAssembly Core Specification.

/** An integer from 0 to 2^31 in LEB128: seven bits per byte, lowest first. */
const whole = (n) => (n < 128 ? [n] : [(n & 127) | 128, whole(n >> 7)]);
const vector = (items) => [whole(items.length), items];
const name = (text) => vector([...text].map((char) => char.charCodeAt(0)));
const section = (id, content) => [id, vector(content.flat(Infinity))];

const [I32, F32, V128] = [0x7f, 0x7d, 0x7b]; // types
const constant = (n) => [0x41, whole(n)]; // below 64, since it is signed
const get = (local) => [0x20, local];
const put = (local, value) => [value, 0x21, local];
const plus = (a, b) => [a, b, 0x6a];
const minus = (a, b) => [a, b, 0x6b];
const isBelow = (a, b) => [a, b, 0x49];
const add = (local, value) => put(local, plus(get(local), value));

let fused = true; // product and sum in one instruction of "relaxed SIMD": a sixth faster
const addProductTo = (sum, a, b) => put(sum, fused
  ? [get(a), get(b), get(sum), 0xfd, whole(0x105)]
  : addFours(get(sum), multiplyFours(get(a), get(b))));
const ZEROS = [0xfd, 0x0c, ...new Array(16).fill(0)];
const inMemory = (offset) => [2, whole(offset)]; // aligned to 2^2 bytes
const loadFour = (address, offset) => [address, 0xfd, 0x00, inMemory(offset)];
const loadOne = (address, offset) => [address, 0xfd, 0x5c, inMemory(offset)]; // and three zeros
const loadCopies = (address, offset) => [address, 0xfd, 0x09, inMemory(offset)]; // of one number
const onFours = (code) => (...operands) => [operands, 0xfd, whole(code)];
const [nearest, largest, copies] = [0x6a, 0xe9, 0x13].map(onFours);
const [isAbove, both] = [0x44, 0x4e].map(onFours);
const [addFours, minusFours, multiplyFours, divideFours] = [0xe4, 0xe5, 0xe6, 0xe7].map(onFours);
const [toIntegers, addIntegers, shiftLeft] = [0xf8, 0xae, 0xab].map(onFours);
const lane = (four, i) => [four, 0xfd, 0x1f, i];
const addFloats = (a, b) => [a, b, 0x92];
const largerFloat = (a, b) => [a, b, 0x97];
/** Combine the four numbers of a vector. */
const across = (combine, four) => combine(
  combine(lane(get(four), 0), lane(get(four), 1)), combine(lane(get(four), 2), lane(get(four), 3)));
const number = (x) => copies([0x43, ...new Uint8Array(Float32Array.of(x).buffer)]);
const storeFour = (address, offset, four) => [address, four, 0xfd, 0x0b, inMemory(offset)];
const storeFloat = (address, offset, value) => [address, value, 0x38, inMemory(offset)];

/** Run the body, which decreases `left`, while `left` is at least `step`. */
const whileAtLeast = (left, step, body) => [
  [0x02, 0x40], [0x03, 0x40], // a block, to leave, and in it a loop, to begin again
  isBelow(get(left), constant(step)), [0x0d, 1],
  body, put(left, minus(get(left), constant(step))),
  [0x0c, 0], 0x0b, 0x0b,
];

/** A function of `count` integers, and of a float if `last` says so. `write` returns its body from
 * its parameters and from functions that make locals: integers, and vectors of four floats. */
function define(count, write, last = []) {
  const inputs = [...new Array(count).fill(I32), ...last], types = [];
  const make = (type) => (n) => range(n).map(() => inputs.length + types.push(type) - 1);
  const body = write(range(inputs.length), make(I32), make(V128));
  return { inputs, code: [vector(types.map((type) => [1, type])), body, 0x0b].flat(Infinity) };
}

/** In tiles of R rows by S outputs, y[r][n] = sum over k of x[r][k] w[n][k]. `rows` and `outputs`
 * are multiples of a tile, strides are in bytes.
 *
 * A tile has R * S sums. Each has four parts, for k = 0, 4, 8, ..., for k = 1, 5, 9, ..., and so
 * on, which are added at the end. If four does not divide the depth, the rest goes to the first
 * part. The order is the same in every tile, so that a row is bitwise identical whichever rows are
 * computed with it. Sixteen registers hold a tile of 4 x 2 and its inputs; more are slower. */
const dots = (R, S) => define(9, (parameters, integers, vectors) => {
  const [x, w, y, rows, outputs, depth, xStride, wStride, yStride] = parameters;
  const [nextX, nextY, rowsLeft, left] = integers(4);
  const [xs, ws] = [integers(R), integers(S)]; // addresses
  const four = vectors(R); // numbers from x
  const [weights] = vectors(1); // from w
  const sums = range(R).map(() => vectors(S));

  /** Multiply four numbers of each row, `offset` bytes after the addresses. */
  const products = (load, offset) => [
    four.map((each, r) => put(each, load(get(xs[r]), offset))),
    ws.map((address, s) => [
      put(weights, load(get(address), offset)),
      sums.map((row, r) => addProductTo(row[s], four[r], weights)),
    ]),
  ];
  const onward = (bytes) => [...xs, ...ws].map((address) => add(address, constant(bytes)));
  const tile = [
    sums.flat().map((sum) => put(sum, ZEROS)),
    xs.map((address) => [put(address, get(nextX)), add(nextX, get(xStride))]),
    ws.map((address, s) => put(address, s ? plus(get(ws[s - 1]), get(wStride)) : get(w))),
    put(left, get(depth)),
    whileAtLeast(left, 8, [products(loadFour, 0), products(loadFour, 16), onward(32)]),
    whileAtLeast(left, 4, [products(loadFour, 0), onward(16)]),
    whileAtLeast(left, 1, [products(loadOne, 0), onward(4)]),
    sums.map((row) => [
      row.map((sum, s) => storeFloat(get(nextY), 4 * s, across(addFloats, sum))),
      add(nextY, get(yStride)),
    ]),
  ];
  return whileAtLeast(outputs, S, [ // weights are read once, and used for all rows
    put(nextX, get(x)), put(nextY, get(y)), put(rowsLeft, get(rows)),
    whileAtLeast(rowsLeft, R, tile),
    range(S).map(() => add(w, get(wStride))), add(y, constant(4 * S)),
  ]);
});

/** In tiles, y[r][n] += sum over k of x[r][k] w[k][n]; or of x[k][r] w[k][n] if x is transposed.
 * The sums run over k in order. */
const outers = (R, S, transposed) => define(9, (parameters, integers, vectors) => {
  const [x, w, y, rows, outputs, depth, xStride, wStride, yStride] = parameters;
  const [nextX, nextY, rowsLeft, left, from] = integers(5);
  const [xs, ys] = [integers(transposed ? 1 : R), integers(R)]; // addresses
  const fours = vectors(Math.max(1, S / 4)); // numbers from w
  const [copy] = vectors(1); // of a number from x
  const sums = range(R).map(() => vectors(fours.length));
  const load = S > 1 ? loadFour : loadOne;
  const store = (address, offset, sum) => (S > 1
    ? storeFour(address, offset, get(sum)) : storeFloat(address, offset, lane(get(sum), 0)));
  const steps = (count) => [
    range(count).map((k) => [
      fours.map((four, i) => put(four, load(get(from), 16 * i))), add(from, get(wStride)),
      sums.map((row, r) => [
        put(copy, transposed ? loadCopies(get(xs[0]), 4 * r) : loadCopies(get(xs[r]), 4 * k)),
        row.map((sum, i) => addProductTo(sum, copy, fours[i])),
      ]),
      transposed ? add(xs[0], get(xStride)) : [],
    ]),
    transposed ? [] : xs.map((address) => add(address, constant(4 * count))),
  ];
  const tile = [
    xs.map((address) => [
      put(address, get(nextX)), add(nextX, transposed ? constant(4 * R) : get(xStride))]),
    ys.map((address) => [put(address, get(nextY)), add(nextY, get(yStride))]),
    sums.map((row, r) => row.map((sum, i) => put(sum, load(get(ys[r]), 16 * i)))),
    put(from, get(w)), put(left, get(depth)),
    whileAtLeast(left, 4, steps(4)),
    whileAtLeast(left, 1, steps(1)),
    sums.map((row, r) => row.map((sum, i) => store(get(ys[r]), 16 * i, sum))),
  ];
  return whileAtLeast(outputs, S, [
    put(nextX, get(x)), put(nextY, get(y)), put(rowsLeft, get(rows)),
    whileAtLeast(rowsLeft, R, tile),
    add(w, constant(4 * S)), add(y, constant(4 * S)),
  ]);
});

/** Run the body for each four of `width` bytes, with addresses that begin at others. */
const forFours = (left, width, addresses, body) => [
  addresses.map(([address, start]) => put(address, get(start))), put(left, get(width)),
  whileAtLeast(left, 16, [body, addresses.map(([address]) => add(address, constant(16)))]),
];

/** e to the power of the numbers in x, which becomes 0 below 2^-126. The power of two is split into
 * a whole one, written into the exponent, and the series of one between -1/2 and 1/2. */
const exponential = (x, whole) => [
  put(x, largest(multiplyFours(get(x), number(Math.LOG2E)), number(-127))),
  put(whole, nearest(get(x))),
  put(x, minusFours(get(x), get(whole))),
  multiplyFours(
    shiftLeft(addIntegers(toIntegers(get(whole)), toIntegers(number(127))), constant(23)),
    [7, 6, 5, 4, 3, 2, 1].reduce((sum, n) => addFours(number(1),
      multiplyFours(multiplyFours(get(x), number(Math.LN2 / n)), sum)), number(1))),
];

/** A function that replaces rows of `width` bytes, a multiple of 16, by the softmax of their
 * numbers times a scale. */
const softmaxes = define(3, ([x, rows, width, scale], integers, vectors) => {
  const [at, left] = integers(2);
  const [top, sum, power, whole] = vectors(4);
  const each = (body) => forFours(left, width, [[at, x]], body);
  return whileAtLeast(rows, 1, [
    put(top, number(-Infinity)), put(sum, ZEROS),
    each(put(top, largest(get(top), loadFour(get(at), 0)))),
    put(top, copies(across(largerFloat, top))),
    each([
      put(power, multiplyFours(minusFours(loadFour(get(at), 0), get(top)), copies(get(scale)))),
      put(power, exponential(power, whole)),
      put(sum, addFours(get(sum), get(power))),
      storeFour(get(at), 0, get(power)),
    ]),
    put(sum, copies(across(addFloats, sum))),
    each(storeFour(get(at), 0, divideFours(loadFour(get(at), 0), get(sum)))),
    put(x, get(at)),
  ]);
}, [F32]);

/** A function of `count` bytes that writes to y a function of x and y. */
const pointwise = (compute) => define(3, ([x, y, count], integers, vectors) => {
  const [left] = integers(1);
  const fours = vectors(2);
  return forFours(left, count, [], [
    put(fours[0], loadFour(get(x), 0)), put(fours[1], loadFour(get(y), 0)),
    storeFour(get(y), 0, compute(...fours.map(get))),
    add(x, constant(16)), add(y, constant(16)),
  ]);
});
const positive = (x) => largest(x, ZEROS);

/** A module that imports a memory and exports each function by its name. */
function assemble(functions) {
  const found = Object.entries(functions);
  return Uint8Array.from([
    [0, 0x61, 0x73, 0x6d, 1, 0, 0, 0], // "\0asm", version 1
    section(1, vector(found.map(([, { inputs }]) => [0x60, vector(inputs), vector([])]))), // types
    section(2, vector([[name("js"), name("memory"), 2, 0, 0]])),
    section(3, vector(found.map((_, i) => i))), // the type of each function
    section(7, vector(found.map(([each], i) => [name(each), 0, i]))),
    section(10, vector(found.map(([, { code }]) => vector(code)))),
  ].flat(Infinity));
}

// --------------------------------------------------------------------------------- matmuls
// The outputs of tiles of four rows and of one, for each kind of matmul.
const TILES = { dots: [[2, 1], [4, 1]], outers: [[8, 4, 1], [8, 4, 1]] };
TILES.transposed = TILES.outers;

function makeFunctions() {
  const functions = {
    softmaxes,
    relu: pointwise(positive),
    relu2: pointwise((x) => multiplyFours(positive(x), positive(x))),
    "relu back": pointwise((x, y) => both(y, isAbove(x, ZEROS))),
    "relu2 back": pointwise((x, y) => multiplyFours(y, addFours(positive(x), positive(x)))),
  };
  for (const [kind, widths] of Object.entries(TILES)) {
    [4, 1].forEach((R, i) => widths[i].forEach((S) => {
      functions[`${kind} ${R} ${S}`] =
        kind === "dots" ? dots(R, S) : outers(R, S, kind === "transposed");
    }));
  }
  return functions;
}

/** The memory of all engines, which grows as needed, and the kernels over it. `floats` is a new
 * array after each `reserve`. */
class Arena {
  constructor() {
    this.end = 0;
    this.memory = new WebAssembly.Memory({ initial: 0 });
    let bytes = assemble(makeFunctions());
    if (!WebAssembly.validate(bytes)) { // no relaxed SIMD
      fused = false;
      bytes = assemble(makeFunctions());
    }
    const module = new WebAssembly.Module(bytes);
    this.kernels = new WebAssembly.Instance(module, { js: { memory: this.memory } }).exports;
  }

  /** Reserve `count` numbers, all zero, and return where they begin. */
  reserve(count) {
    const start = this.end;
    this.end += 16 * Math.ceil(count / 16);
    const missing = 4 * this.end - this.memory.buffer.byteLength;
    if (missing > 0) this.memory.grow(Math.ceil(missing / 65536));
    this.floats = new Float32Array(this.memory.buffer);
    return start;
  }

  /** y = x W^T; y += x W; y += x^T W. K is the number of terms of a sum, and y is (rows, N). Each
   * stride is the distance between two rows; if omitted, that of a matrix without gaps. */
  multiply(...parameters) { this.matmul("dots", ...parameters); }
  addProduct(...parameters) { this.matmul("outers", ...parameters); }
  addTransposed(...parameters) { this.matmul("transposed", ...parameters); }

  matmul(kind, x, w, y, rows, K, N, wStride = kind === "dots" ? K : N,
    xStride = kind === "transposed" ? rows : K, yStride = N) {
    const xRow = kind === "transposed" ? 1 : xStride, wOutput = kind === "dots" ? wStride : 1;
    for (const [i, height, from, to] of [[0, 4, 0, rows & ~3], [1, 1, rows & ~3, rows]]) {
      let n = 0;
      for (const width of from < to ? TILES[kind][i] : []) {
        const end = N - ((N - n) % width);
        if (n < end) {
          this.kernels[`${kind} ${height} ${width}`](
            4 * (x + from * xRow), 4 * (w + n * wOutput), 4 * (y + from * yStride + n),
            to - from, end - n, K, 4 * xStride, 4 * wStride, 4 * yStride);
        }
        n = end;
      }
    }
  }

  /** Compute the softmax of rows of `width` numbers, a multiple of 4, each times `scale`, in place.
   * The weight of -Infinity is zero. */
  softmaxRows(x, rows, width, scale = 1) {
    this.kernels.softmaxes(4 * x, rows, 4 * width, scale);
  }
}

/** A width of rows that `softmaxRows` takes, for `count` numbers. */
export const fours = (count) => (count + 3) & ~3;

export const arena = new Arena();

// ---------------------------------------------------------------- products and activations
export function product(a, b) {
  let sum = 0;
  for (let i = 0; i < a.length; i++) sum += a[i] * b[i];
  return sum;
}

/** q.k / sqrt(D) of head h for each pair of a row of Q and a row of K, which are C wide. */
export function scoresOfPairs(Q, K, h, C, D) {
  const count = K.length / C;
  const ofHead = (rows, t) => rows.subarray(t * C + h * D, t * C + (h + 1) * D);
  return Float32Array.from({ length: (Q.length / C) * count }, (_, i) =>
    product(ofHead(Q, Math.floor(i / count)), ofHead(K, i % count)) / Math.sqrt(D));
}

/** The MLP's nonlinearities without a kernel, which are slower. */
const FUNCTIONS = {
  gelu: (u) => u * cumulative(u),
  // GPT-2's approximation of GELU (Hendrycks & Gimpel 2016, section 2)
  gelu_tanh: (u) => 0.5 * u * (1 + Math.tanh(Math.sqrt(2 / Math.PI) * (u + 0.044715 * u ** 3))),
};

/** And their derivatives. */
const DERIVATIVES = {
  gelu: (u) => cumulative(u) + u * density(u),
  gelu_tanh: (u) => {
    const tanh = Math.tanh(Math.sqrt(2 / Math.PI) * (u + 0.044715 * u ** 3));
    const inner = Math.sqrt(2 / Math.PI) * (1 + 3 * 0.044715 * u * u);
    return 0.5 * (1 + tanh) + 0.5 * u * (1 - tanh * tanh) * inner;
  },
};

/** Apply the nonlinearity to `count` numbers at `up`, and write them to `active`. */
export function activate(name, memory, up, active, count) {
  if (arena.kernels[name]) return arena.kernels[name](4 * up, 4 * active, 4 * fours(count));
  const activation = FUNCTIONS[name] ?? (() => NaN);
  for (let i = 0; i < count; i++) memory[active + i] = activation(memory[up + i]);
}

/** Multiply `count` numbers at `dup` by the derivative of the nonlinearity at those at `up`. */
export function activateBack(name, memory, up, dup, count) {
  const kernel = arena.kernels[`${name} back`], derivative = DERIVATIVES[name];
  if (kernel) kernel(4 * up, 4 * dup, 4 * fours(count));
  else for (let i = 0; i < count; i++) memory[dup + i] *= derivative(memory[up + i]);
}

/** Density and distribution function of the standard normal distribution, the latter to 7.5e-8
 * (Abramowitz & Stegun 1964, 26.2.17). */
const density = (u) => Math.exp(-0.5 * u * u) / Math.sqrt(2 * Math.PI);
function cumulative(u) {
  const t = 1 / (1 + 0.2316419 * Math.abs(u));
  const above = density(u) * t * (0.319381530 + t * (-0.356563782 + t * (1.781477937 +
    t * (-1.821255978 + t * 1.330274429))));
  return u > 0 ? 1 - above : above;
}
