// The state of the page: what the reader chose, and what is computed from that. Everything that draws
// is a function of it. Only `change` writes it.

import { data } from "./data.js";
import { measures } from "./measures.js";
import { own, tokenizer } from "./run.js";

export const STAGES = ["scores", "masked", "weights"]; // of attention

/** What the address can describe, and Reset restores. */
export const initial = () => ({
  text: data.opening.text.map((id) => tokenizer.known(id)),
  snapshot: own(),
  head: data.opening.head,
  mlp: null, // layer of the MLP that is open, or null if the head is
  guide: 0, // of the five steps
  lacking: [], // what the address asks for, and the page does not have
  note: "", // what a link says of what it shows, instead of the first step
  edits: [], // words
  pin: null, // {q, k} that was clicked; k is null if only a query is selected
  other: null, // the text that patches come from, or null for one made from the text
  panel: null, // key of the open panel
  more: false, // whether all controls are on show
  big: null, // the part that is alone on the screen, of BIG
  stage: "weights", // one of STAGES
  measure: measures[0],
  bar: null, // id of the token whose logit contributions are shown
  color: data.opening.color ?? "surprisal", // of the text, or "probability"
  token: tokenizer.idOf.get("\n") ?? data.opening.text.at(-1), // id, whose probability the text shows
});

const current = {
  ...initial(),
  instead: "zero", // or "mean": what replaces a head's output
  hover: null, // {q, k} under the pointer
  relative: false, // to the most likely other token
  opened: null, // panel to scroll to once it is shown
  seed: 1337, // of the continuation
  sampling: null, // {temperature, topK} of the continuation, or {wrong} in words
  playing: false, // through the snapshots
  newest: 0, // step of the last snapshot, in the playground
  training: false, // likewise
  stopped: null, // why training ended by itself, in words
  kept: null, // the run to compare with, of playground/setting.js
  turn: 0, // numbers the updates; an update stops when a newer one has begun
  busy: false, // computing
  view: null, // {turn, snapshot, seen, start, tokens, other, pass, before, same, engine, edits}
  effects: {}, // of ablating each head: see ablation.js
  ahead: [], // the tokens of the continuation
  verdict: null, // of report/check.js
};

/** The state, to read: an assignment is an error. */
export const state = Object.freeze(Object.create(current));

/** Whether `view` is what the current choices require. */
export const settled = () => state.view?.turn === state.turn;

const COMPUTED = ["text", "snapshot", "edits", "other", "instead", "panel", "guide"];
const WITHOUT_VIEW = ["busy", "playing"]; // drawn also before the first view
const reactions = {};

/** Say what follows a change: `update` computes a new view after a change of one of COMPUTED;
 * `shows` lists, for each other part, the functions that draw it. */
export function react(update, shows) {
  Object.assign(reactions, { update, shows });
}

/** Change parts of the state, and show them; resolves once a new view is shown or given up. */
export function change(changes) {
  Object.assign(current, changes);
  const changed = "view" in changes ? ["view"] : Object.keys(changes);
  if (changed.some((part) => COMPUTED.includes(part))) return reactions.update();
  const drawn = changed.filter((part) => state.view || WITHOUT_VIEW.includes(part));
  for (const show of new Set(drawn.flatMap((part) => reactions.shows?.[part] ?? []))) show();
}
