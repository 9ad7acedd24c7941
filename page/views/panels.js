// The panels under "More", in order, to which a page adds its own; one is open at a time, and the address names it by `key`.
// `show(isCurrent)` fills its section, `${key}-section`, while it is open, and may be async; it gives up
// if `isCurrent()` becomes false.

import { openPanel } from "../actions.js";
import { change, state } from "../state.js";
import { showAlone } from "./alone.js";
import { showCircuit } from "./circuit.js";
import { $, button } from "./elements.js";
import { showLens } from "./lens.js";
import { showPatching } from "./patching.js";
import { showScores } from "./scores.js";

export const PANELS = [
  { key: "lens", title: "Logit lens", show: showLens },
  { key: "patch", title: "Patching", show: showPatching },
  { key: "scores", title: "Head scores", show: showScores },
  { key: "alone", title: "Head from weights", show: showAlone },
  { key: "circuit", title: "Circuit", show: showCircuit },
];

export const offerPanels = () => $("more").append(...PANELS.map(({ key, title }) =>
  button(() => openPanel(state.panel === key ? null : key), { id: `show-${key}` }, title)));

/** Show the open panel, and no other. */
export async function showPanel(isCurrent) {
  for (const { key } of PANELS) {
    $(`show-${key}`).ariaExpanded = $(`show-${key}`).ariaPressed = key === state.panel;
    $(`${key}-section`).hidden = key !== state.panel;
  }
  await PANELS.find(({ key }) => key === state.panel)?.show(isCurrent);
  if (!state.opened || !isCurrent()) return;
  $(`${state.opened}-section`).scrollIntoView({ block: "nearest" });
  change({ opened: null });
}
