// The continuation of the text that the model would write.

import { mayGoOn } from "../engine/pass.js";
import { generate } from "../engine/sampling.js";
import { engineFor, tokenizer } from "../run.js";
import { change, state } from "../state.js";
import { markCopied } from "./ngrams.js";
import { $, el } from "./elements.js";
import { visible } from "./format.js";
import { write } from "./typing.js";

const AHEAD = 80; // tokens
let ahead = []; // the continuation
let draws = 0;
let drawnFor; // the turn whose text it continues

export function showAhead(tokens) {
  ahead = tokens;
  $("continuation").replaceChildren(...tokens.flatMap(({ token }) =>
    [el("span", { className: "token" }, visible(token)), tokenizer.gap]));
}

/** Mark what the whole continuation copies from the training text. */
export function showCopied() {
  if (ahead.length < AHEAD || !state.ngrams) return;
  $("copied-note").hidden = false;
  markCopied([...$("continuation").children], ahead.map(({ id }) => id));
}

/** Sample the continuation; once it is whole, the page is idle. */
export async function goOn() {
  const mine = ++draws, { turn, view } = state;
  drawnFor = turn;
  document.body.dataset.busy = "yes";
  const isCurrent = () => mine === draws && turn === state.turn;
  const wrong = ["temperature", "top-k"].map($)
    .find(({ validity: { rangeUnderflow, rangeOverflow } }) => rangeUnderflow || rangeOverflow);
  if (wrong) {
    showAhead([]);
    $("continuation").textContent = `${wrong.id}: ${wrong.validationMessage}`;
    document.body.dataset.busy = "no";
    return;
  }
  const settings = {
    temperature: Number($("temperature").value),
    topK: Math.max(0, Math.trunc(Number($("top-k").value))),
    seed: state.seed,
  };
  const found = [];
  const ids = view.seen.map(({ id }) => id);
  for (const drawn of generate(engineFor("ahead", view.snapshot), ids, AHEAD, settings, view.edits)) {
    if (!(await mayGoOn(isCurrent))) return;
    if (!drawn) continue;
    found.push(tokenizer.known(drawn.id));
    showAhead(found);
  }
  showCopied();
  document.body.dataset.busy = "no";
}

/** Sample again after a change of the settings; an update in progress does so by itself. */
export const redraw = () => drawnFor === state.turn && goOn();

$("write-one").onclick = () => write(ahead.slice(0, 1));
$("another").onclick = () => change({ seed: state.seed + 1 });
$("temperature").oninput = $("top-k").oninput = redraw;
