// An edit of the computation is a word, which also stands in the page's address:
//   L0H1=zero  L0H1=mean     the output of a head
//   L0.attn  L0.mlp          all heads of a layer; its MLP
//   hide@12                  a position that no later one attends to
//   move@12=5                the key at a position, rotated by 5 more
//   hide@12/L1H0  move@12/!L1H0=5   likewise, in one head; in all others
//   patch@12/L1  patch@12/L1H0   a layer's input, or a head's output, from the other text

import { range } from "./numbers.js";

const EDIT = new RegExp("^(?:" + [/L(\d+)H(\d+)=(zero|mean)/, /L(\d+)\.(attn|mlp)/,
  /(hide|patch|move)@(\d+)(?:\/(!?)L(\d+)(?:H(\d+))?)?(?:=(-?[1-9]\d*))?/]
  .map(({ source }) => source).join("|") + ")$");

export class Edits {
  constructor({ L, H, B, hidden }, config) {
    Object.assign(this, { L, H, B, hidden, canMove: config.positions === "rotary" });
    this.ofEngine = new Map(); // the engine's edits by word; the same object means no change
  }

  /** {kind, layer, head, position, instead, others, by}, or null if the word is not an edit of this
   * model. `others` are all heads but the named one. */
  read(word) {
    const match = EDIT.exec(word);
    if (!match) return null;
    const [layer, head, position] =
      [match[1] ?? match[4] ?? match[9], match[2] ?? match[10], match[7]]
        .map((text) => (text === undefined ? undefined : Number(text)));
    const kind = match[3] ? "head" : match[5] ?? match[6];
    const others = Boolean(match[8]), by = Number(match[11] ?? 0), isOfHead = head !== undefined;
    const isPossible = {
      mlp: this.hidden > 0,
      hide: (layer !== undefined) === isOfHead && !by,
      patch: layer !== undefined && !others && !by,
      move: (layer !== undefined) === isOfHead && by && Math.abs(by) < this.B && this.canMove,
    }[kind] ?? true;
    const wrong = !isPossible || layer >= this.L || head >= this.H || position >= this.B;
    return wrong ? null : { kind, layer, head, position, instead: match[3], others, by };
  }

  /** The edits in the engine's form. `donor` is an engine that has computed the other text. */
  toEngine(words, donor) {
    return words.flatMap((word) => {
      const { kind, layer, head, position, instead, others, by } = this.read(word);
      if (kind === "patch") {
        const { memory, at, C, D } = donor;
        const [from, width] = head === undefined
          ? [at[`x${layer}`], C] : [at[`z${layer}`] + head * D, D];
        const row = memory.slice(from + position * C, from + position * C + width);
        return [{ layer, head, position, row }];
      }
      const each = (edit) => range(this.L * this.H)
        .map((i) => ({ layer: Math.floor(i / this.H), head: i % this.H, ...edit }))
        .filter((to) => layer === undefined || (to.layer === layer && to.head === head) !== others);
      if (!this.ofEngine.has(word)) {
        this.ofEngine.set(word, {
          head: () => [{ layer, head, off: instead }],
          attn: () => range(this.H).map((h) => ({ layer, head: h, off: "zero" })),
          mlp: () => [{ layer, off: "mlp" }],
          hide: () => each({ hide: position }),
          move: () => each({ position, by }),
        }[kind]());
      }
      return this.ofEngine.get(word);
    });
  }
}
