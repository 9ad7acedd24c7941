// Texts as tokens, as in data/tokenizer.py. A text is a list of tokens, each {id, token}; id is
// null for a token that the model never saw.

import { range } from "./numbers.js";

// Bytes that are not UTF-8 are kept as U+DC80 to U+DCFF, as with Python's surrogateescape.
const escaped = (byte) => String.fromCharCode(0xdc00 + byte);

function utf8Of(text) {
  const encoder = new TextEncoder();
  return Array.from(text).flatMap((char) => {
    const code = char.codePointAt(0);
    return code >= 0xdc80 && code <= 0xdcff ? [code - 0xdc00] : [...encoder.encode(char)];
  });
}

function textOf(bytes, keep = escaped) {
  const decoder = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });
  let text = "";
  for (let i = 0; i < bytes.length;) {
    const lead = bytes[i];
    const length = lead < 0x80 ? 1 : lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
    try {
      text += decoder.decode(bytes.subarray(i, i + length));
      i += length;
    } catch { // not UTF-8: one byte is kept as it is
      text += keep(lead);
      i += 1;
    }
  }
  return text;
}

/** Subwords: bytes are visible characters, joined as the merges say. */
class Subwords {
  constructor({ merges, special, unused = 0 }) {
    const bytes = range(256);
    const seen = (b) => (b > 0x20 && b < 0x7f) || (b > 0xa0 && b !== 0xad);
    const ordered = [...bytes.filter(seen), ...bytes.filter((b) => !seen(b))];
    const pairs = merges ? merges.split("\n") : [];
    let next = 0x100;
    this.charOf = bytes.map((b) => String.fromCharCode(seen(b) ? b : next++));
    this.byteOf = new Map(this.charOf.map((char, byte) => [char, byte]));
    this.rank = new Map(pairs.map((pair, i) => [pair, i]));
    const added = [...special, ...range(unused).map((i) => `<|unused ${i}|>`)];
    const tokens = [...new Set([...ordered.map((b) => this.charOf[b]),
      ...pairs.map((pair) => pair.replace(" ", "")), ...added])];
    this.idOf = new Map(tokens.map((token, id) => [token, id]));
    this.bytes = tokens.map((token) => (added.includes(token) ? utf8Of(token)
      : Array.from(token, (char) => this.byteOf.get(char))));
    // Added tokens are found before words are, of several at a place the longest.
    const longest = special.toSorted((a, b) => b.length - a.length)
      .map((token) => token.replace(/[^\p{L}\p{N}]/gu, (char) =>
        `\\u{${char.codePointAt(0).toString(16)}}`));
    this.special = longest.length ? new RegExp(`(${longest.join("|")})`, "u") : null;
    this.words = new RegExp("'(?:s|t|re|ve|m|ll|d)| ?\\p{L}+| ?\\p{N}+|" +
      " ?[^\\p{White_Space}\\p{L}\\p{N}]+|\\p{White_Space}+(?!\\P{White_Space})|" +
      "\\p{White_Space}+", "gu");
  }

  ids(text) {
    return (this.special ? text.split(this.special) : [text]).flatMap((part, i) =>
      (i % 2 ? [this.idOf.get(part)] : this.idsOfWords(part)));
  }

  idsOfWords(text) {
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
}

/** The label of each token, as in data/tokenizer.py: bytes that are not a character are \\xNN. */
export function labelsOf(described) {
  const label = (bytes) =>
    textOf(Uint8Array.from(bytes), (byte) => `\\x${byte.toString(16).padStart(2, "0")}`);
  return {
    char: ({ chars }) => Array.from(chars), word: ({ words }) => words,
    byte: () => range(256).map((byte) => label([byte])),
    bpe: () => new Subwords(described).bytes.map(label),
  }[described.kind](described);
}

export class Tokenizer {
  /** @param described what `to_dict` of a tokenizer in Python returns
   * @param vocab the label of each id */
  constructor(described, vocab) {
    Object.assign(this, { kind: described.kind, vocab });
    this.parts = { char: /[^]/gu, word: /[0-9]+|[A-Za-z]+|[^0-9A-Za-z \t\r\n]/gu }[this.kind];
    this.gap = this.kind === "word" ? " " : ""; // between two tokens
    this.idOf = new Map(vocab.map((token, id) => [token, id]));
    this.subwords = this.kind === "bpe" ? new Subwords(described) : null;
  }

  known(id) { return { id, token: this.vocab[id] }; }

  encode(text) {
    if (this.parts) {
      return (text.match(this.parts) ?? [])
        .map((token) => ({ id: this.idOf.get(token) ?? null, token }));
    }
    return (this.subwords?.ids(text) ?? utf8Of(text)).map((id) => this.known(id));
  }

  decode(tokens) {
    if (this.parts) return tokens.map(({ token }) => token).join(this.gap);
    const bytes = tokens.flatMap(({ id }) => (this.subwords ? this.subwords.bytes[id] : id));
    return textOf(Uint8Array.from(bytes));
  }

  /** A text in the address: itself, or ids, which the tokenizer might choose otherwise. */
  toAddress(tokens) {
    return this.parts ? this.decode(tokens) : tokens.map(({ id }) => id).join(".");
  }

  fromAddress(text) {
    return this.parts ? this.encode(text)
      : (text.match(/\d+/g) ?? []).filter((id) => id in this.vocab)
        .map((id) => this.known(Number(id)));
  }
}
