// The address of the page, which describes its state.

import { range } from "./engine/numbers.js";
import { data, editing, headName, HEADS, sizes, snapshots, tokenizer, vocab } from "./run.js";
import { initial, state } from "./state.js";
import { BIG } from "./views/big.js";
import { PANELS } from "./views/panels.js";

/** The part of the address after #: what differs from the initial state. */
function address() {
  const first = initial(), parts = new URLSearchParams();
  const [text, old] = [state.text, first.text].map((each) => tokenizer.toAddress(each));
  if (text !== old) parts.set("text", text);
  if (state.snapshot !== first.snapshot) parts.set("step", snapshots[state.snapshot].step);
  if (state.head !== first.head) parts.set("head", headName(state.head));
  if (state.mlp !== null) parts.set("mlp", state.mlp);
  if (state.note) parts.set("note", state.note);
  if (state.step) parts.set("guide", state.step + 1); // "step" is of training
  for (const word of state.edits) parts.append("edit", word);
  if (state.pin) parts.set("at", [state.pin.q, state.pin.k ?? []].flat().join("."));
  if (state.other) parts.set("other", tokenizer.toAddress(state.other));
  if (state.panel) parts.set("panel", state.panel);
  if (state.big) parts.set("big", state.big);
  if (state.color !== first.color) parts.set("color", state.color);
  if (state.color === "probability") parts.set("token", state.token);
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

/** The changes that the address describes; anything invalid keeps its initial value. */
export function readAddress() {
  const parts = new URLSearchParams(location.hash.slice(1)), changes = {};
  if (parts.has("text")) changes.text = tokenizer.fromAddress(parts.get("text"));
  if (parts.get("other")) changes.other = tokenizer.fromAddress(parts.get("other"));
  if (PANELS.some(({ key }) => key === parts.get("panel"))) changes.panel = parts.get("panel");
  if (BIG.includes(parts.get("big"))) changes.big = parts.get("big");
  const colors = ["probability", ...(data.text ? ["ngrams"] : [])];
  if (colors.includes(parts.get("color"))) changes.color = parts.get("color");
  const token = vocab.findIndex((_, id) => `${id}` === parts.get("token"));
  if (token >= 0) changes.token = token;
  changes.note = parts.get("note") ?? "";
  const snapshot = snapshots.findIndex(({ step }) => `${step}` === parts.get("step"));
  if (snapshot >= 0) changes.snapshot = snapshot;
  const head = range(HEADS).find((each) => headName(each) === parts.get("head"));
  if (head !== undefined) changes.head = head;
  const ofHead = (word) => word.replace(/=.*/, ""); // one edit of a head
  const mlp = range(sizes.hidden && sizes.L).find((each) => `${each}` === parts.get("mlp"));
  if (mlp !== undefined) changes.mlp = mlp;
  const step = range(5).find((each) => `${each + 1}` === parts.get("guide"));
  if (step) changes.step = step;
  const [, q, k] = /^(\d+)(?:\.(\d+))?$/.exec(parts.get("at")) ?? []; // in the text, or ignored
  if (q) changes.pin = { q: Number(q), k: k ? Number(k) : null };
  changes.edits = parts.getAll("edit").filter((word, i, words) =>
    editing.read(word) && words.findIndex((each) => ofHead(each) === ofHead(word)) === i);
  return changes;
}
