// Random numbers from a seed, the same in every browser.

/** The generator sfc32 (Doty-Humphrey 2010): a counter and three words that mix it. */
export class Random {
  constructor(seed) {
    this.words = [0, seed / 2 ** 32 | 0, seed | 0, 1];
    for (let i = 0; i < 15; i++) this.uniform(); // until all bits depend on the seed
  }

  /** A number in [0, 1), a multiple of 2^-32. */
  uniform() {
    const [a, b, c, count] = this.words;
    const sum = (a + b + count) | 0;
    this.words =
      [b ^ (b >>> 9), (c + (c << 3)) | 0, (((c << 21) | (c >>> 11)) + sum) | 0, (count + 1) | 0];
    return (sum >>> 0) / 2 ** 32;
  }

  /** A number from the standard normal distribution (Box & Muller 1958). */
  normal() {
    return Math.sqrt(-2 * Math.log(1 - this.uniform())) * Math.cos(2 * Math.PI * this.uniform());
  }
}
