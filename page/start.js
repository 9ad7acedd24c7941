// What both pages have: what draws each part of the state, and what happens without a reader's action.

import { restart, reset } from "./actions.js";
import { keepAddress, readAddress } from "./address.js";
import "./console.js";
import { react, state } from "./state.js";
import { ablating, redraw, refreshPanel, update } from "./update.js";
import { darkness } from "./views/colors.js";
import { showAhead } from "./views/continuation.js";
import { showChosen } from "./views/chosen.js";
import { showCircuit } from "./views/circuit.js";
import { showContributions } from "./views/contributions.js";
import { showEdits } from "./views/edit_list.js";
import { showBig } from "./views/big.js";
import { $ } from "./views/elements.js";
import "./views/glossary.js";
import { drawMap, showHead, showKeyEdits } from "./views/head.js";
import { showHeader } from "./views/header.js";
import "./views/keys.js";
import { showLegends } from "./views/legends.js";
import { markLens } from "./views/lens.js";
import { showMlp } from "./views/mlp.js";
import { showMore } from "./views/more.js";
import { drawWires, showEnds, showNetwork, showThumbnails } from "./views/network.js";
import { showNext } from "./views/next.js";
import { offerPanels } from "./views/panels.js";
import { dimPatches, drawPatches } from "./views/patching.js";
import "./views/save.js";
import { showFormation } from "./views/scores.js";
import { showStep } from "./views/steps.js";
import { buildText, drawArcs, showPinned, showText, showTextState } from "./views/text.js";
import { showPlaying } from "./views/training.js";

const showSnapshot = () => { document.body.dataset.snapshot = state.view.snapshot; };

/** Show what depends on the selected head, and is computed only while it is open. */
const followHead = () => (ablating() ? update() : refreshPanel());

// The map is smaller below a step that draws vectors.
const SELECTED_PAIR = [showStep, drawMap, showLegends, showKeyEdits, markLens];
const SELECTED_TOKEN = [showText, showNext, showContributions, showEnds, showMlp, showChosen];
const SHOWS = {
  busy: [() => { document.body.dataset.busy = state.busy ? "yes" : "no"; }],
  playing: [showPlaying],
  view: [
    dimPatches, buildText, showTextState, showThumbnails, showNetwork, showHead,
    ...SELECTED_PAIR, ...SELECTED_TOKEN, showEdits, showBig, showMore, showAhead, showSnapshot, keepAddress,
  ],
  effects: [showStep],
  ahead: [showAhead],
  head: [showMlp, showNetwork, showHead, ...SELECTED_PAIR, ...SELECTED_TOKEN, followHead, keepAddress],
  hover: [...SELECTED_PAIR, ...SELECTED_TOKEN],
  pin: [...SELECTED_PAIR, ...SELECTED_TOKEN, showCircuit, showPinned, keepAddress],
  bar: [showNext, showContributions, showMlp, showCircuit, keepAddress],
  relative: [showNext, showContributions],
  mlp: [showNetwork, showMlp, drawMap, keepAddress],
  stage: [showHead, ...SELECTED_PAIR, showMore, keepAddress],
  big: [showBig, showMore, drawMap, refreshPanel, keepAddress],
  measure: [showNetwork, refreshPanel, showMore, keepAddress],
  more: [showMore, showNext, keepAddress],
  seed: [redraw],
  sampling: [redraw],
  color: [showText, showLegends, showChosen, showMore, keepAddress],
  token: [showText, showLegends, showChosen, keepAddress],
  size: [drawMap, drawArcs, drawWires, showFormation, drawPatches, showChosen], // of the window
};

/** Open a page. `shows` are more functions that draw parts of the state. */
export function start(shows) {
  for (const [part, draws] of Object.entries(shows)) (SHOWS[part] ??= []).push(...draws);
  offerPanels();
  react(update, SHOWS);
  $("reset").onclick = reset;
  addEventListener("hashchange", () => restart(readAddress()));
  darkness.addEventListener("change", () => {
    update();
    drawPatches();
  });
  const sizes = new ResizeObserver(() => {
    document.documentElement.style.setProperty("--bar", `${$("bar").offsetHeight}px`);
    for (const draw of SHOWS.size) requestAnimationFrame(() => draw()); // not here: drawing changes sizes
  });
  for (const id of ["map", "text", "network", "bar", "panels"]) sizes.observe($(id));
  restart(readAddress());
  showHeader();
}
