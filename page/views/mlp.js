// The selected MLP: its strongest neurons at the selected token.

import { toggleEdit } from "../actions.js";
import { indexOfLargest, largestOf, ranked, sum } from "../engine/numbers.js";
import { neuronsOf } from "../engine/pass.js";
import { rowOf, vocab } from "../run.js";
import { isOff, place, queryOnShow } from "../selection.js";
import { settled, state } from "../state.js";
import { shadeScore } from "./colors.js";
import { $, header, numeral, refill, row } from "./elements.js";
import { count, number, quoted, signed } from "./format.js";

const SHOWN = 12;

export function showMlp() {
  const { mlp, bar, view } = state, t = queryOnShow();
  $("mlp-section").hidden = mlp === null;
  $("head-section").hidden = mlp !== null;
  if (mlp === null || !settled()) return;
  const word = `L${mlp}.mlp`, token = bar ?? indexOfLargest(rowOf(view.pass.logits, t));
  $("mlp-title").textContent = `MLP of layer ${mlp}`;
  $("ablate-mlp").textContent = `${isOff(word) ? "Restore" : "Ablate"} ${$("mlp-title").textContent}`;
  $("ablate-mlp").ariaPressed = isOff(word);
  $("ablate-mlp").onclick = () => toggleEdit(word);
  const { given, added } = neuronsOf(view.engine, mlp, t, token), shown = [...added].map(Math.abs);
  const best = ranked(shown, SHOWN), limit = largestOf(shown) || 1;
  $("mlp-note").textContent = `At ${place("token", t)}, ${count(given.filter((x) => x > 0).length)} ` +
    `of ${count(given.length)} neurons are above 0. Together they add ` +
    `${signed(sum([...added]), 2)} to the logit of ${quoted(vocab[token])} by the direct path` +
    `${isOff(word) ? ", which is cut" : ""}. The strongest:`;
  refill($("neurons"),
    row(header("neuron"), header("activation"), header(`to logit of ${quoted(vocab[token])}`)),
    ...best.map((j) => row(numeral(`${j}`), numeral(number(given[j], 2)),
      shadeScore(numeral(signed(added[j], 3)), added[j], limit))));
}
