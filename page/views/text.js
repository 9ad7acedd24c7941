// The text that the model reads, an element per token, with arcs of attention.

import { pin, pointAt } from "../actions.js";
import { chancesOf } from "./chosen.js";
import { clamp, largestOf, range, ranked } from "../engine/numbers.js";
import { headName, sizes, tokenizer, vocab } from "../run.js";
import {
  atColumn, HAS_LINES, looking, maskNow, place, queryOnShow, textOnShow, weightsOf,
} from "../selection.js";
import { state } from "../state.js";
import { shade, theme } from "./colors.js";
import { $, el, refill, reveal, svg, withArrows } from "./elements.js";
import { number, quoted, tokensOf, visible } from "./format.js";
import { UNIFORM_GUESS } from "./legends.js";

const KNOWN = `The model knows ${vocab.slice(0, 120).map(visible).join(tokenizer.gap || " ")}`;
let spans = []; // an element a token of the window

/** Marks at every tenth column, if each token is a character. */
function ruler(text) {
  const lines = text.map(({ token }) => token).join("").split("\n");
  const longest = HAS_LINES && tokenizer.kind === "char" ? largestOf(lines.map((line) => line.length)) : 0;
  return el("div", { id: "ruler", ariaHidden: true }, ...range(Math.ceil(longest / 10)).map((i) => {
    const mark = el("span", {}, `${10 * (i + 1)}`);
    mark.style.left = `calc(${10 * i + 9} * (1ch + 0.06em))`; // as wide as .token
    return mark;
  }));
}

/** Show the text: its end, which the model reads, the tokens before, and those it never saw. */
export function buildText() {
  const { text, view: { start } } = state, shown = textOnShow(), place = $("text");
  const atEnd = place.scrollTop + place.clientHeight > place.scrollHeight - 4;
  const all = shown === text ? text : [...text, ...shown], parts = [], isFirst = !spans.length;
  let at = -start; // in the window
  spans = [];
  for (const token of all) {
    const span = el("span", { className: "token unseen" }, visible(token.token));
    if (token.id !== null) {
      span.className = at < 0 ? "token before" : "token";
      if (start && at === 0) parts.push(el("b", { className: "begins" }, "context"));
      if (at >= 0) Object.assign(span, { role: "button" }).dataset.t = spans.push(span) - 1;
      at++;
    }
    if (at <= -4 * sizes.B) continue; // not all of a long text
    parts.push(span, tokenizer.gap, ...(token.token.includes("\n") ? [el("br")] : []));
  }
  refill(place, svg("svg", { id: "arcs", height: 0, "aria-hidden": "true" }), ruler(all), ...parts);
  if (atEnd) place.scrollTop = place.scrollHeight;
  if (isFirst) showPinned();
}

export const showPinned = () => state.pin && reveal($("text"), spans[state.pin.q]);

export function showTextState() {
  const { lacking, text, view: { start, pass: { T } } } = state, shown = textOnShow() === text;
  const unseen = [...new Set(text.filter(({ id }) => id === null).map(({ token }) => token))];
  $("text-state").textContent = [
    lacking.length && `The address asks for what this page does not have: ${lacking.join(", ")}.`,
    unseen.length && `The model never saw ${unseen.slice(0, 9).map(quoted).join(" ")}` +
      `${unseen.length > 9 ? ` and ${unseen.length - 9} more` : ""} in training, and skips ` +
      `${unseen.length > 1 ? "them" : "it"}.`,
    !shown && "Type a text; the results are those of the previous one." +
      (text.length ? ` ${KNOWN}` : ""),
    shown && start && `The model reads the last ${T} of ${start + T} tokens: whenever its context of ` +
      `${sizes.B} is full, it drops the first half.`,
  ].filter(Boolean).join(" ");
}

export function showText() {
  const { color, view: { tokens, same, pass: { surprisal } } } = state;
  const look = color === "surprisal" ? looking() : null;
  const chances = color === "probability" && chancesOf(state.view.pass);
  const weights = look && weightsOf(state.head, look.q), { weight, surprise } = theme();
  const isMasked = maskNow(), here = queryOnShow();
  document.body.dataset.color = color; // which places the text, before arcs are drawn
  spans.forEach((span, t) => {
    const masked = look !== null && isMasked(look.q, t);
    span.classList.toggle("masked", masked);
    span.classList.toggle("here", t === here);
    span.classList.toggle("pinned", t === (state.pin?.k ?? state.pin?.q));
    span.classList.toggle("kept", t < same && !looking()); // visible while one types
    if (masked) shade(span, weight, NaN);
    else if (look) shade(span, weight, Math.sqrt(weights[t]));
    else if (chances) shade(span, weight, Math.sqrt(chances[t]));
    else shade(span, surprise, surprisal[t] / UNIFORM_GUESS);
    span.tabIndex = t === here ? 0 : -1;
    span.ariaLabel = `${t} ${visible(tokens[t])}, surprisal ${number(surprisal[t], 2)}`;
  });
  $("text-note").textContent = chances
    ? `Probability of ${quoted(vocab[state.token])} after ` +
      `${place("token", here)}${atColumn(here)}: ${number(chances[here])}.`
    : look ? `Color: attention of ${headName(state.head)} from ` +
      `${place("token", look.q)}${atColumn(look.q)}.`
    : same > 0 ? `The results of ${tokensOf(same)} stay: no token affects earlier ones.`
    : "Color: surprisal. Point at a token, or click to select it.";
  drawArcs();
}

/** Draw arcs from the selected query to what the head attends to, as wide as the weights. */
export function drawArcs() {
  const arcs = $("arcs");
  if (!state.view || !arcs) return;
  const q = queryOnShow(), look = state.color === "surprisal" && looking();
  const weights = look ? weightsOf(state.head, q) : [];
  const top = (t) => [spans[t].offsetLeft + spans[t].offsetWidth / 2, spans[t].offsetTop];
  const [x, y] = top(q);
  arcs.setAttribute("height", 0); // else it would be a part of what is measured
  arcs.setAttribute("height", $("text").scrollHeight);
  arcs.replaceChildren(...ranked(weights, 8).filter((k) => weights[k] >= 0.02).map((k) => {
    const [to, up] = top(k), lift = Math.min(34, 12 + Math.abs(x - to) / 8);
    const loop = k === q ? 6 : 0; // to itself
    return svg("path", {
      d: `M${x + loop} ${y}C${x + 2 * loop} ${y - lift} ` +
        `${to - 2 * loop} ${up - lift} ${to - loop} ${up}`,
      "stroke-width": 1 + 5 * weights[k], opacity: 0.35 + 0.65 * weights[k],
    }, svg("title", {}, number(weights[k])));
  }));
}

const tokenAt = ({ target: { dataset } }) =>
  (dataset.t ? { q: Number(dataset.t), k: null } : null);

Object.assign($("text"), {
  onpointerover: (event) => pointAt(tokenAt(event)),
  onpointerleave: () => pointAt(null),
  onclick: (event) => tokenAt(event) && pin(tokenAt(event)),
  onkeydown: withArrows((span, across, down) =>
    spans[clamp(Number(span.dataset.t) + across + down, 0, state.view.pass.T - 1)].focus()),
  onkeyup: (event) => "Enter ".includes(event.key) && pin(tokenAt(event)),
});
$("text").addEventListener("focusin", (event) =>
  event.target.matches(":focus-visible") && pointAt(tokenAt(event)));
// Wait until the focus has moved, because drawing may replace its target.
$("text").addEventListener("focusout", () => setTimeout(() =>
  $("text").contains(document.activeElement) || pointAt(null)));
$("typed").title = KNOWN;
$("text").classList.toggle("subwords", tokenizer.kind !== "char");
