// The logit contributions: what each part of the model adds to a logit, or to its difference from
// that of the most likely other token.

import { selectHead, selectLogit } from "../actions.js";
import { largestOf, range, ranked, sum } from "../engine/numbers.js";
import { data } from "../data.js";
import { headName, rowOf, sizes, vocab } from "../run.js";
import { queryOnShow } from "../selection.js";
import { change, settled, state } from "../state.js";
import { shadeScore } from "./colors.js";
import { $, button, el, header, numeral, refill, row } from "./elements.js";
import { quoted, signed } from "./format.js";

const hasBiases = data.shapes.some(([name]) => /(out|final_norm|head)\.bias$/.test(name));

export function showContributions() {
  const { bar, relative, edits, view } = state, { L, H, hidden } = sizes, t = queryOnShow();
  $("contributions").hidden = bar === null;
  $("writing").hidden = bar !== null;
  if (bar === null || !settled()) return;
  const rival = ranked(rowOf(view.pass.logP, t), 2).find((id) => id !== bar);
  const { embedding, heads, mlps, biases } = view.engine.contributions(t, bar, relative ? rival : null);
  const logits = rowOf(view.pass.logits, t), logit = logits[bar] - (relative ? logits[rival] : 0);
  const parts = [embedding, biases, ...heads, ...mlps];
  const limit = largestOf(parts.map(Math.abs)) || 1;
  const part = (value, head) => shadeScore(numeral(head === undefined ? signed(value, 2)
    : button(() => selectHead(head), { title: `select ${headName(head)}` }, signed(value, 2))),
  value, limit);
  const single = (name, value) => row(header(name, "row"), part(value));
  const isPatched = edits.some((word) => /^patch.*L\d+$/.test(word));
  const choice = el("input", { type: "checkbox", checked: relative,
    onchange: () => change({ relative: choice.checked }) });
  const names = (relative ? [bar, rival] : [bar]).map((id) => quoted(vocab[id])).join(" minus ");
  refill($("contributions"),
    el("div", { className: "controls" }, el("b", {}, `Logit contributions to ${names}`),
      el("label", {}, choice, ` minus ${quoted(vocab[rival])}`),
      button(() => selectLogit(bar), { ariaLabel: "Close" }, "×")),
    el("div", { className: "scroll" }, el("table", {},
      row(header(""), ...range(H).map((h) => header(`H${h}`)), ...(hidden ? [header("MLP")] : [])),
      ...range(L).map((l) => row(header(`L${l}`, "row"),
        ...range(H).map((h) => part(heads[l * H + h], l * H + h)),
        ...(hidden ? [part(mlps[l])] : []))),
      single("embedding", embedding), ...(hasBiases ? [single("biases", biases)] : []),
      ...(isPatched ? [single("patched in", logit - sum(parts))] : []),
      row(header("sum", "row"), numeral(signed(logit, 2))))));
}
