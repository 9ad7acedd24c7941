// The grid of heads, and the parts of layers beside them.

import { moveHead, selectHead, toggleEdit } from "../actions.js";
import { range } from "../engine/numbers.js";
import { HIGH, labelOf, measures } from "../measures.js";
import { HEADS, headName, sizes } from "../run.js";
import { isHeadOff, isOff } from "../selection.js";
import { change, state } from "../state.js";
import { $, el } from "./elements.js";
import { paintMap } from "./maps.js";

const thumbnails = range(HEADS).map((head) =>
  el("button", { type: "button", className: "pick", onclick: () => selectHead(head) },
    el("canvas"), el("span")));
const layers = range(sizes.L).map((l) => el("div", { className: "layer" }, el("b", {}, `L${l}`),
  ...["attn", "mlp"].map((part) => el("button",
    { type: "button", value: part, onclick: () => toggleEdit(`L${l}.${part}`) }, part))));

export function showThumbnails() {
  thumbnails.forEach(({ firstChild: canvas }, head) => {
    canvas.className = state.view.pass.T > 64 ? "fine" : "";
    paintMap(canvas, head, "weights");
  });
}

export function showGrid() {
  const { measure, view: { snapshot } } = state, { H } = sizes;
  const focused = document.activeElement.matches?.(".pick");
  thumbnails.forEach((pick, head) => {
    const value = measure.text(measure.at(snapshot)[head]), label = labelOf(head, snapshot);
    const off = isHeadOff(head) ? ", ablated" : "";
    pick.lastChild.replaceChildren(el("b", {}, headName(head)), el("span", {}, value),
      el("i", { title: `a score of at least ${HIGH}` }, label));
    pick.ariaPressed = head === state.head;
    pick.ariaLabel = `layer ${Math.floor(head / H)} head ${head % H}, ` +
      `${measure.name} ${value} ${label}${off}`;
    pick.tabIndex = head === state.head ? 0 : -1; // arrow keys select the others
    pick.classList.toggle("off", Boolean(off));
  });
  if (focused) thumbnails[state.head].focus();
  layers.forEach((layer, l) => layer.querySelectorAll("button").forEach((button) => {
    const off = button.ariaPressed = isOff(`L${l}.${button.value}`);
    button.ariaLabel = `${off ? "restore" : "ablate"} layer ${l} ${button.value}`;
    button.title = `${button.ariaLabel}, always with zeros`;
  }));
}

/** Select another head with an arrow key, unless it scrolls the page; return whether it did. */
export function moveInGrid(way) {
  const { top, bottom } = $("heads").getBoundingClientRect();
  if (way[1] && (bottom < 0 || top > innerHeight)) return false;
  moveHead(way);
  return true;
}

$("heads").style.setProperty("--heads", sizes.H);
$("heads").style.setProperty("--layers", sizes.L);
$("heads").append(...layers.flatMap((layer, l) =>
  [layer, ...thumbnails.slice(l * sizes.H, (l + 1) * sizes.H)]));
$("measure").append(...measures.map(({ key, name }) => el("option", { value: key }, name)));
$("measure").onchange = () => change({ measure: measures[$("measure").selectedIndex] });
