// What comes next: the most likely tokens after the selected one.

import { selectLogit } from "../actions.js";
import { clamp, ranked } from "../engine/numbers.js";
import { rowOf, vocab } from "../run.js";
import { edited, place, queryOnShow } from "../selection.js";
import { state } from "../state.js";
import {
  $, button, cell, el, gauge, header, numeral, p, refill, row, term, withArrows,
} from "./elements.js";
import { number, quoted, visible } from "./format.js";
import { choose } from "./typing.js";

export function showNext() {
  const { view } = state, t = queryOnShow(), { T, ids, surprisal } = view.pass;
  const [now, before] = [view.pass, view.before].map((pass) => rowOf(pass.logP, t));
  const next = ids[t + 1];
  const shown = ranked(now, edited() ? 6 : 7), [best] = ranked(before, 1); // an edit may put it further down
  const press = state.more ? button : (_, { className }, ...content) => el("div", { className }, ...content);
  const rows = (shown.includes(best) ? shown : shown.with(-1, best)).map((id, i) => {
    const token = visible(vocab[id]), tabIndex = i ? -1 : 0; // arrows do the rest
    const [likely, was] = [now, before].map((logP) => Math.exp(logP[id]));
    const bar = press(() => selectLogit(id), { className: "bar-button", title: "logit contributions",
      ariaLabel: `logit contributions to ${token}`, ariaPressed: id === state.bar, tabIndex },
    gauge("", likely), ...(edited() ? [gauge("ghost", was)] : []));
    return el("tr", { className: id === next ? "came" : "" },
      cell(press(() => choose(id), { className: "write", tabIndex,
        title: t + 1 < T ? "write it here, instead of what follows" : "append" }, token)),
      numeral(number(likely)), ...(edited() ? [numeral(number(was))] : []), cell(bar));
  });
  const own = surprisal[t], after = surprisal[t + 1];
  const heads = edited() ? [row(header(""), header("now"), header("before"), header(""))] : [];
  refill($("next"),
    el("table", {}, ...heads, ...rows),
    p(el("b", {}, `After ${place("token", t)}`), ". ", t + 1 < T
      ? `Came next: ${quoted(view.tokens[t + 1])}, probability ${number(Math.exp(-after))}. `
      : "This is the last token that the model reads. ", "The ", term("surprisal"),
    Number.isNaN(own) ? " of the first token is undefined."
      : ` of ${quoted(view.tokens[t])} was ${number(own)}.`));
}

$("next").onkeydown = withArrows((spot, across, down) => {
  const stops = [...$("next").querySelectorAll("button")];
  stops[clamp(stops.indexOf(spot) + across + 2 * down, 0, stops.length - 1)].focus();
});
