// What is computed of the state: the view; then what the open panel shows, the effects of ablating each
// head, if the last of the five steps is on show, and the continuation of the text.

import { data } from "./data.js";
import { windowStart } from "./engine/engine.js";
import { indexOfLargest, range, ranked, sameAtStart, triangle } from "./engine/numbers.js";
import { compute, inductionOn, mayGoOn, passOf } from "./engine/pass.js";
import { generate } from "./engine/sampling.js";
import { HIGH } from "./engine/stages.js";
import {
  COPIES, editing, engineFor, headName, HEADS, layerAndHead, own, rowOf, sizes, snapshots, tokenizer,
  vocab,
} from "./run.js";
import { hasEffect, readable, textOnShow } from "./selection.js";
import { change, settled, state } from "./state.js";
import { showPanel } from "./views/panels.js";
import { loaded } from "./views/trouble.js";

const ofOther = (word) => word.startsWith("patch"); // needs the other text

/** What is computed of a view once it is drawn, in order. */
export const LATER = [showPanel, measureHeads, goOn];

/** Compute what the state requires; stop if the state changes meanwhile. */
export async function update() {
  change({ turn: state.turn + 1, busy: true });
  const { turn } = state, isCurrent = () => turn === state.turn;
  if (state.snapshot !== own() && !(await loaded.then(isCurrent))) return;
  const view = await computeView(turn, readable(textOnShow()), isCurrent);
  if (!view) return;
  const inText = (at) => (at && Math.max(at.q, at.k ?? 0) < view.pass.T ? at : null);
  change({ view, pin: inText(state.pin), hover: inText(state.hover), ahead: [] });
  for (const work of LATER) {
    await work(isCurrent);
    if (!isCurrent()) return;
  }
}

/** Return the model's pass over the end of the text, with and without the edits; nothing if it is
 * no longer wanted. */
async function computeView(turn, seen, isCurrent) {
  const { snapshot, edits, view: was } = state;
  const start = windowStart(seen.length - 1, sizes.B);
  const tokens = seen.slice(start).map(({ token }) => token);
  const ids = seen.slice(start).map(({ id }) => id);
  const plain = engineFor("plain", snapshot);
  if (!(await compute(plain, ids, [], isCurrent))) return;
  const before = passOf(plain);
  const given = readable(state.other ?? []);
  const other = given.length ? given : start ? seen : madeOther(before, seen);
  const view = { turn, snapshot, seen, start, tokens, other, before, pass: before, engine: plain };
  const inputs = [snapshots[snapshot].step, start, ...edits, edits.some(ofOther) && tokenizer.decode(other)];
  view.made = inputs.join();
  const words = edits.filter((word) => hasEffect(editing.read(word), view));
  view.edits = [];
  if (edits.length) {
    const patched = words.some(ofOther);
    const donor = patched ? engineFor("donor", snapshot) : null;
    if (patched && !(await compute(donor, other.map(({ id }) => id), [], isCurrent))) return;
    view.engine = engineFor("edited", snapshot);
    view.edits = editing.toEngine(words, donor);
    if (!(await compute(view.engine, ids, view.edits, isCurrent))) return;
    view.pass = passOf(view.engine);
  }
  view.same = was?.made === view.made ? sameAtStart(was.pass.ids, ids) : 0;
  if (view.same === ids.length) view.same = 0; // nothing was typed
  return view;
}

const kindOf = (token) => [/^ ?\p{L}+$/u, /^ ?\p{N}+$/u, /^\s+$/].findIndex((is) => is.test(token));

/** A text with another token at the place that the first head of the page attends to from the end: the
 * most likely one of the same kind (and, in a repeated string, one that does not occur in it). */
function madeOther({ T, attention, logP }, text) {
  const at = indexOfLargest(attention[data.opening.head].subarray(triangle(T - 1), triangle(T)));
  const old = text[at].id, present = new Set(COPIES ? text.map(({ id }) => id) : [old]);
  const likely = at ? ranked(rowOf(logP, at - 1), sizes.V) : vocab.map((_, id) => id);
  const id = likely.find((each) => !present.has(each) && kindOf(vocab[each]) === kindOf(vocab[old]));
  return text.map((token, t) => (t === at ? tokenizer.known(id ?? old) : token));
}

/** Show the open panel again, unless an update is in progress. */
export function refreshPanel() {
  const { turn } = state;
  if (settled()) showPanel(() => turn === state.turn);
}

/** Whether the step on show needs `measureHeads`. */
export const ablating = () => state.guide === 4;

/** What the effects are of, apart from the snapshot. */
const inputs = () => [state.view.pass.ids, state.instead, state.head].join();

/** Whether the effects are those of the text on show, perhaps at another snapshot. */
export const areOfText = () => state.effects.made === inputs();

/** The selected head if it does induction on the text; otherwise, the head that does it most. */
function copier() {
  const { attention, ids } = state.view.before;
  const scores = attention.map((weights) => inductionOn(weights, ids));
  return scores[state.head] >= HIGH ? state.head : indexOfLargest(scores);
}

/** Ablate each head alone, and keep {made, step, of: the copier, before, losses, copying, chances of
 * the prediction}. */
export async function measureHeads(isCurrent) {
  const { view, instead } = state, { ids } = view.pass, { step } = snapshots[view.snapshot];
  if (!ablating() || (areOfText() && state.effects.step === step)) return;
  const engine = engineFor("try", view.snapshot), losses = [], copying = [], chances = [];
  const end = (pass) => rowOf(pass.logP, ids.length - 1), best = indexOfLargest(end(view.before));
  const made = inputs(), of = copier(), [layer, h] = layerAndHead(of);
  for (const head of range(HEADS)) {
    const edits = editing.toEngine([`${headName(head)}=${instead}`], null);
    if (!(await compute(engine, ids, edits, isCurrent))) return;
    const pass = passOf(engine);
    losses.push(pass.loss);
    chances.push(Math.exp(end(pass)[best]));
    copying.push(inductionOn(engine.attention(layer, h), ids));
  }
  change({ effects: { made, step, of, before: view.before, losses, copying, chances } });
}

const AHEAD = 80; // tokens
let draws = 0;
let drawnFor; // the turn whose text it continues

/** Sample the continuation; once it is whole, the page is idle. */
export async function goOn() {
  const mine = ++draws, { turn, view, sampling, seed } = state;
  drawnFor = turn;
  change({ busy: true });
  const isCurrent = () => mine === draws && turn === state.turn;
  const found = [], ids = view.seen.map(({ id }) => id);
  const tokens = sampling.wrong ? []
    : generate(engineFor("ahead", view.snapshot), ids, AHEAD, { ...sampling, seed }, view.edits);
  for (const drawn of tokens) {
    if (!(await mayGoOn(isCurrent))) return;
    if (!drawn) continue;
    found.push(tokenizer.known(drawn.id));
    change({ ahead: found });
  }
  change(sampling.wrong ? { ahead: [], busy: false } : { busy: false });
}

/** Sample again after a change of the settings; an update in progress does so by itself. */
export const redraw = () => drawnFor === state.turn && goOn();
