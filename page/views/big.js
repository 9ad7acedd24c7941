// Big letters, for a projector: one part of the page alone.

import { data, last } from "../run.js";
import { change, state } from "../state.js";
import { $ } from "./elements.js";

export const BIG = [null, "head", "network", "text", ...(last() || data.live ? ["bar"] : []),
  ...(data.live ? ["compare"] : [])];
const NAMES = { head: "Map", network: "Network", text: "Text", bar: "Training", compare: "A and B" };
const FOCUS = { head: "#map", network: ".pick[tabindex='0']", text: ".here", bar: "#slider",
  compare: "#big" };

function next() {
  const all = BIG.filter((part) => part !== "compare" || data.kept?.steps);
  return all[(all.indexOf(state.big) + 1) % all.length];
}

export const showNextBig = () =>
  change({ ...(next() === "compare" ? { panel: "compare" } : {}), big: next() });

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
