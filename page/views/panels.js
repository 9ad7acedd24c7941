// The panels under "More", in order; one is open at a time, and the address names it by `key`.
// `show(isCurrent)` fills its section, `${key}-section`, while it is open, and may be async; it gives up
// if `isCurrent()` becomes false.

import { openPanel } from "../actions.js";
import { data } from "../run.js";
import { state } from "../state.js";
import { $, button } from "./elements.js";
import { showAlone } from "./alone.js";
import { showCircuit } from "./circuit.js";
import { showExamples } from "./examples.js";
import { showLens } from "./lens.js";
import { showPatching } from "./patching.js";
import { showScores } from "./scores.js";

export const PANELS = [];

/** Add a panel, which may be one of the playground alone. */
export function offer(panel) {
  const { key, title } = panel, open = () => openPanel(state.panel === key ? null : key);
  PANELS.push(panel);
  $("more").append(button(open, { id: `show-${key}` }, title));
}

/** Show the open panel, and no other. */
export function showPanel(isCurrent) {
  for (const { key } of PANELS) {
    $(`show-${key}`).ariaExpanded = $(`show-${key}`).ariaPressed = key === state.panel;
    $(`${key}-section`).hidden = key !== state.panel;
  }
  return PANELS.find(({ key }) => key === state.panel)?.show(isCurrent);
}

/** Trace the circuit of what is selected now. */
export function followCircuit() {
  if (state.panel === "circuit") showCircuit();
}

offer({ key: "lens", title: "Logit lens", show: showLens });
offer({ key: "patch", title: "Patching", show: showPatching });
offer({ key: "scores", title: "Head scores", show: showScores });
if (data.examples) offer({ key: "examples", title: "Head examples", show: showExamples });
offer({ key: "alone", title: "Head from weights", show: showAlone });
offer({ key: "circuit", title: "Circuit", show: showCircuit });
