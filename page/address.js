// The address of the page, which describes its state.

import { range } from "./engine/numbers.js";
import { measures } from "./measures.js";
import { editing, headName, HEADS, sizes, snapshots, tokenizer } from "./run.js";
import { initial, STAGES, state } from "./state.js";
import { BIG } from "./views/big.js";
import { $ } from "./views/elements.js";
import { PANELS } from "./views/panels.js";

const oneOf = (values, write = (value) => `${value}`) =>
  [write, (word) => values().find((value) => write(value) === word)];
const text = [(tokens) => tokenizer.toAddress(tokens), (word) => tokenizer.fromAddress(word)];
const token = oneOf(() => range(sizes.V));

function readPair(word) {
  const [, q, k] = /^(\d+)(?:\.(\d+))?$/.exec(word) ?? [];
  return q && { q: Number(q), k: k ? Number(k) : null };
}

/** Of each part of the state: its name in the address, and how its value is written and read. What
 * cannot be read is undefined. */
const PARTS = {
  text: ["text", ...text],
  snapshot: ["step", ...oneOf(() => range(snapshots.length), (i) => `${snapshots[i].step}`)],
  head: ["head", ...oneOf(() => range(HEADS), headName)],
  mlp: ["mlp", ...oneOf(() => range(sizes.hidden && sizes.L))],
  note: ["note", String, String],
  guide: ["guide", ...oneOf(() => range(5), (i) => `${i + 1}`)],
  pin: ["at", ({ q, k }) => [q, k ?? []].flat().join("."), readPair], // in the text, or ignored
  other: ["other", ...text],
  panel: ["panel", ...oneOf(() => PANELS.map(({ key }) => key))],
  more: ["more", ...oneOf(() => [true, false])],
  big: ["big", ...oneOf(() => Object.keys(BIG))],
  stage: ["stage", ...oneOf(() => STAGES)],
  measure: ["score", ...oneOf(() => measures, ({ key }) => key)],
  color: ["color", ...oneOf(() => [...$("color").options].map(({ value }) => value))],
  token: ["token", ...token],
  bar: ["logit", ...token],
};

/** The part of the address after #: what differs from the initial state. */
export function address() {
  const first = initial(), parts = new URLSearchParams();
  for (const [part, [name, write]] of Object.entries(PARTS)) {
    const [now, then] = [state[part], first[part]].map((value) => (value === null ? "" : write(value)));
    if (now !== then && (part !== "token" || state.color === "probability")) parts.set(name, now);
  }
  for (const word of state.edits) parts.append("edit", word);
  return parts.size ? `#${parts}` : "";
}

let keeping; // browsers refuse an address that changes too often
let keptEdits = ""; // of the last address: Back undoes edits, and the first change

export function keepAddress() {
  clearTimeout(keeping);
  keeping = setTimeout(() => {
    const edits = state.edits.join();
    const way = location.hash && edits === keptEdits ? "replaceState" : "pushState";
    keptEdits = edits;
    if (address() === location.hash) return;
    try {
      history[way](null, "", address() || location.pathname + location.search);
    } catch { // a frame without an address, as in a notebook
    }
  }, 300);
}

/** The changes that the address describes, and in `lacking`, what of it the page does not have. */
export function readAddress() {
  const changes = { edits: [], lacking: [] };
  const ofHead = (word) => word.replace(/=.*/, ""); // one edit of a head
  for (const [name, word] of new URLSearchParams(location.hash.slice(1))) {
    const [part, [, , read]] = Object.entries(PARTS).find(([, [each]]) => each === name) ?? [name, []];
    const value = name === "edit" ? editing.read(word) && word : read?.(word);
    if (value === undefined || value === null) changes.lacking.push(`${name}=${word}`);
    else if (name !== "edit") changes[part] = value;
    else if (!changes.edits.some((each) => ofHead(each) === ofHead(word))) changes.edits.push(word);
  }
  return changes;
}
