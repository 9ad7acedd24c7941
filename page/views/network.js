// The picture of the network: the residual stream from the tokens to the logits, and what reads it
// and adds to it. In each layer these are the heads, then the MLP if there is one, each after a norm.

import { openPanel, selectHead, selectLogit, toggleEdit, toggleHead } from "../actions.js";
import { indexOfLargest, largestOf, range } from "../engine/numbers.js";
import { HIGH } from "../engine/stages.js";
import { data } from "../data.js";
import { labelOf, measures } from "../measures.js";
import { HEADS, headName, rowOf, sizes, snapshots, vocab } from "../run.js";
import { isHeadOff, isOff, offWord, queryOnShow } from "../selection.js";
import { change, state } from "../state.js";
import { $, button, el, rem, reveal, svg, term } from "./elements.js";
import { count, number, quoted, tokensOf } from "./format.js";
import { paintMap } from "./maps.js";

const { L, H, V, hidden } = sizes;
const ablating = (word, act = () => toggleEdit(word)) =>
  button(act, { className: "cutter", value: word });
const side = (...content) =>
  el("div", { className: "side" }, el("span", { className: "norm" }, term("norm")), ...content);

const tiles = range(HEADS).map((head) =>
  button(() => selectHead(head), { className: "pick" }, el("canvas"), el("span")));
const boxes = tiles.map((pick, head) => {
  const job = data.jobs?.[head], cutter = ablating(headName(head), () => toggleHead(head));
  return el("div", { className: "tile", title: job?.sentence ?? "" }, pick, cutter,
    ...(job ? [el("span", { className: "job" }, job.line)] : []));
});
const layers = range(L).map((l) => ({
  side: side(el("b", {}, `L${l}`), ablating(`L${l}.attn`)),
  tiles: boxes.slice(l * H, (l + 1) * H),
  mlpSide: side(),
  mlp: el("div", { className: "mlp" }, button(() => change({ mlp: l }), { className: "opens" },
    el("b", {}, "MLP"), ` ${count(hidden)} neurons`), ablating(`L${l}.mlp`)),
}));
const tokens = button(() => $("typed").focus(), { className: "first end opens" });
const logits = button(() => selectLogit(indexOfLargest(rowOf(state.view.pass.logits, queryOnShow()))),
  { className: "end opens" });
const lastSide = side();
const stream = button(() => openPanel("lens"), { className: "stream" });
const wires = svg("svg", { id: "wires", "aria-hidden": "true" });
stream.title = stream.ariaLabel = "residual stream: open the logit lens";

export function showThumbnails() {
  tiles.forEach(({ firstChild: canvas }, head) => {
    canvas.className = state.view.pass.T > 64 ? "fine" : "";
    paintMap(canvas, head, "weights");
  });
}

let shownFor; // the choices that the tiles show
let revealed; // the head that the picture was scrolled to

export function showNetwork() {
  const { measure, head: selected, mlp, edits, view: { snapshot } } = state;
  const choices = [snapshots[snapshot].step, measure.key, selected, mlp, ...edits].join();
  if (choices === shownFor) return; // typing changes only the maps
  shownFor = choices;
  $("network").classList.toggle("edited", edits.length > 0);
  $("measure").selectedIndex = measures.indexOf(measure);
  $("measure").title = `${measure.formula} (${measure.source})`;
  const values = measure.at(snapshot);
  const focused = document.activeElement.matches?.(".pick");
  const most = measure.error ? largestOf(values.map(Math.abs)) || 1 : 1;
  tiles.forEach((pick, head) => {
    const value = measure.text(values[head]), isSelected = mlp === null && head === state.head;
    const label = isHeadOff(head) ? "ablated" : edits.length ? "" : labelOf(head, snapshot);
    pick.lastChild.replaceChildren(el("b", {}, headName(head)), el("span", {}, value),
      el("i", { title: `a score of at least ${HIGH}` }, label));
    pick.lastChild.style.backgroundSize = `${(100 * Math.max(0, values[head])) / most}% 3px`;
    pick.ariaPressed = isSelected;
    pick.ariaLabel = `layer ${Math.floor(head / H)} head ${head % H}, ` +
      `${measure.name} ${value} ${label}`;
    pick.tabIndex = pick.nextSibling.tabIndex = head === state.head ? 0 : -1; // arrows select others
    pick.classList.toggle("off", isHeadOff(head));
  });
  if (focused) tiles[state.head].focus();
  if (selected !== revealed) reveal($("network").parentElement, boxes[selected]);
  revealed = selected;
  for (const cutter of $("network").querySelectorAll(".cutter")) {
    const [name, part] = cutter.value.split("."), [l, head] = name.slice(1).split("H").map(Number);
    const off = part ? isOff(cutter.value) : offWord(l * H + head) !== undefined;
    const says = !off ? "ablate" : part ? "restore" : "undo";
    cutter.ariaPressed = off;
    cutter.classList.toggle("extra", Boolean(part));
    cutter.classList.toggle("used", off);
    cutter.disabled = !part && isOff(`L${l}.attn`);
    cutter.textContent = part === "attn" && !off ? "ablate all heads" : says;
    cutter.title = cutter.ariaLabel = !part ? `${off ? "restore" : says} ${name}`
      : `${says} ${part === "mlp" ? "the MLP" : "all heads"} of layer ${l}, always with zeros`;
  }
  layers.forEach(({ mlp: box }, l) => {
    box.classList.toggle("off", isOff(`L${l}.mlp`));
    box.firstChild.ariaPressed = l === mlp;
  });
  drawWires();
}

/** Say what enters the picture, and what leaves it at the selected token. */
export function showEnds() {
  const { view: { pass: { T, logP } } } = state, row = rowOf(logP, queryOnShow());
  const best = indexOfLargest(row);
  tokens.replaceChildren(el("b", {}, tokensOf(T)), " → embedding");
  logits.replaceChildren(el("b", {}, `${count(V)} logits`), " → softmax → ",
    el("b", {}, `${quoted(vocab[best])} ${number(Math.exp(row[best]), 2)}`));
  logits.title = `logit contributions to ${quoted(vocab[best])}`;
}

/** Draw what connects the parts, where the browser has put them. */
export function drawWires() {
  if (!state.view || !tokens.offsetWidth) return;
  const x = stream.offsetLeft + stream.offsetWidth / 2, gap = 0.45 * rem(), drawn = [];
  const bottom = (part) => part.offsetTop + part.offsetHeight;
  const center = (part) => part.offsetLeft + part.offsetWidth / 2;
  const wire = (d, kind = "") => drawn.push(svg("path", { d, class: kind }));
  const across = (from, y, to, isCut) => { // from a part to the stream
    wire(`M${from} ${y}H${to}`, isCut ? "cut" : "");
    wire(`M${x} ${y - gap}v${2 * gap}M${x - gap} ${y}h${2 * gap}`, "plus");
    if (isCut) cross(from - gap, y);
  };
  const cross = (x, y) => wire(`M${x - 5} ${y - 5}l10 10m0 -10l-10 10`, "cross");
  const into = ({ offsetTop, firstChild: norm }) => offsetTop + norm.offsetHeight / 2;
  layers.forEach(({ side, tiles, mlpSide, mlp }, l) => {
    const y = into(side), out = bottom(tiles[0]) + gap, end = center(tiles.at(-1));
    const offs = tiles.map((_, h) => isHeadOff(l * H + h)), all = offs.every(Boolean);
    wire(`M${x} ${y}H${end}`);
    wire(`M${center(tiles[0])} ${out}H${end}`, all ? "cut" : "");
    across(center(tiles[0]), out, x, all);
    tiles.forEach((tile, h) => {
      wire(`M${center(tile)} ${y}V${tile.offsetTop}`);
      wire(`M${center(tile)} ${bottom(tile)}V${out}`, offs[h] ? "cut" : "");
      if (offs[h] && !all) cross(center(tile), bottom(tile) + gap / 2);
    });
    if (!hidden) return;
    wire(`M${x} ${into(mlpSide)}H${mlp.offsetLeft}`);
    across(mlp.offsetLeft, bottom(mlp) - gap / 2, x, isOff(`L${l}.mlp`));
  });
  const last = into(lastSide);
  drawn.unshift(svg("path", { class: "trunk", d: `M${x} ${bottom(tokens)}V${last}H${logits.offsetLeft}` }));
  wires.replaceChildren(...drawn);
}

/** Select another head with an arrow key, unless it scrolls the page; return whether it did. */
export function moveInGrid([across, down]) {
  const { top, bottom } = $("network").getBoundingClientRect();
  if (down && (bottom < 0 || top > innerHeight)) return false;
  const to = state.head + across + down * H;
  const leavesLayer = !down && Math.floor(to / H) !== Math.floor(state.head / H);
  if (to >= 0 && to < HEADS && !leavesLayer) selectHead(to);
  return true;
}

$("network").style.setProperty("--heads", H);
$("network").style.setProperty("--layers", L);
$("network").append(wires, stream, tokens,
  ...layers.flatMap(({ side, tiles, mlpSide, mlp }) =>
    [side, ...tiles, ...(hidden ? [mlpSide, mlp] : [])]),
  lastSide, logits);
$("measure").append(...measures.map(({ key, name }) => el("option", { value: key }, name)));
$("measure").onchange = () => change({ measure: measures[$("measure").selectedIndex] });
