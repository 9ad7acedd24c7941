// Big letters, for a projector: one part of the page alone.

import { data, last } from "../run.js";
import { change, state } from "../state.js";
import { $ } from "./elements.js";

export const BIG = [null, "head", "network", "text", ...(last() || data.live ? ["bar"] : [])];
const NAMES = { head: "Map", network: "Network", text: "Text", bar: "Training" };
const FOCUS = { head: "#map", network: ".pick[tabindex='0']", text: ".here", bar: "#slider" };

const next = () => BIG[(BIG.indexOf(state.big) + 1) % BIG.length];

export const showNextBig = () => change({ big: next() });

export function showBig() {
  const { big } = state, { dataset } = document.body;
  if ((dataset.big ?? null) === big) return;
  if (big) dataset.big = big;
  else delete dataset.big;
  $("big").textContent = big ? NAMES[next()] ?? "Everything" : "Big letters";
  $("small").hidden = !big || !next();
  if (big) document.querySelector(FOCUS[big]).focus({ preventScroll: true });
}

$("big").onclick = showNextBig;
$("small").onclick = () => change({ big: null });
