// The logit contributions: what each part of the model adds to a logit, or to its difference from
// the runner-up's.

import { selectHead, vote } from "../actions.js";
import { largestOf, range, ranked, sum } from "../engine/numbers.js";
import { data, headName, HEADS, rowOf, sizes, vocab } from "../run.js";
import { queryOnShow } from "../selection.js";
import { change, settled, state } from "../state.js";
import { shadeScore } from "./colors.js";
import { $, button, el, header, numeral, refill, row } from "./elements.js";
import { quoted, signed } from "./format.js";

const hasBiases = data.shapes.some(([name]) => /(out|final_norm|head)\.bias$/.test(name));

export function showContributions() {
  const { bar, relative, edits, view } = state, { L, H, V, hidden } = sizes, t = queryOnShow();
  $("votes").hidden = bar === null;
  $("writing").hidden = bar !== null;
  if (bar === null || !settled()) return;
  const rival = ranked(rowOf(view.pass.logP, t), 2).find((id) => id !== bar);
  const of = (id) => {
    const { embedding, heads, mlps, biases } = view.engine.votes(t, id);
    return [view.pass.logits[t * V + id], embedding, biases, ...heads, ...mlps];
  };
  const less = relative ? of(rival) : [];
  const parts = of(bar).map((part, i) => part - (less[i] ?? 0));
  const [logit, embedding, biases] = parts;
  const patched = logit - sum(parts.slice(1));
  const limit = largestOf(parts.slice(1).map(Math.abs)) || 1;
  const part = (value, head) => shadeScore(numeral(head === undefined ? signed(value, 2)
    : button(() => selectHead(head), { title: `select ${headName(head)}` }, signed(value, 2))),
  value, limit);
  const single = (name, value) => row(header(name, "row"), part(value));
  const isPatched = edits.some((word) => /^patch.*L\d+$/.test(word));
  const choice = el("input", { type: "checkbox", checked: relative,
    onchange: () => change({ relative: choice.checked }) });
  const names = (relative ? [bar, rival] : [bar]).map((id) => quoted(vocab[id])).join(" minus ");
  refill($("votes"),
    el("div", { className: "controls" }, el("b", {}, `Logit contributions to ${names}`),
      el("label", {}, choice, " minus runner-up"),
      button(() => vote(bar), { ariaLabel: "Close" }, "×")),
    el("div", { className: "scroll" }, el("table", {},
      row(header(""), ...range(H).map((h) => header(`H${h}`)), ...(hidden ? [header("MLP")] : [])),
      ...range(L).map((l) => row(header(`L${l}`, "row"),
        ...range(H).map((h) => part(parts[3 + l * H + h], l * H + h)),
        ...(hidden ? [part(parts[3 + HEADS + l])] : []))),
      single("embedding", embedding), ...(hasBiases ? [single("biases", biases)] : []),
      ...(isPatched ? [single("patched in", patched)] : []),
      row(header("sum", "row"), numeral(signed(logit, 2))))));
}
