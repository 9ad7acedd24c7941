// Big letters, for a projector: one part of the page alone.

import { change, state } from "../state.js";
import { $ } from "./elements.js";

/** The parts by their keys: a name, what gets the focus, perhaps a panel, and whether it is there. */
export const BIG = {
  head: { name: "Map", focus: "#map" },
  network: { name: "Network", focus: ".pick[tabindex='0']" },
  text: { name: "Text", focus: ".here" },
  bar: { name: "Training", focus: "#slider" },
};

function next() {
  const all = [null, ...Object.keys(BIG).filter((key) => BIG[key].isThere?.() ?? true)];
  return all[(all.indexOf(state.big) + 1) % all.length];
}

export function showNextBig() {
  const big = next(), { panel = state.panel } = BIG[big] ?? {};
  change(panel === state.panel ? { big } : { panel, big });
}

export function showBig() {
  const { big } = state, { dataset } = document.body;
  if ((dataset.big ?? null) === big) return;
  if (big) dataset.big = big;
  else delete dataset.big;
  $("big").textContent = big ? BIG[next()]?.name ?? "Everything" : "Big letters";
  $("small").hidden = !big || !next();
  if (big) document.querySelector(BIG[big].focus).focus({ preventScroll: true });
}

$("big").onclick = showNextBig;
$("small").onclick = () => change({ big: null });
