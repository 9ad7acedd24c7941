// The page: what draws each part of the state, and what happens without a reader's action.

import "./views/trouble.js";
import { restart, reset } from "./actions.js";
import { keepAddress, readAddress } from "./address.js";
import "./console.js";
import { react, state } from "./state.js";
import { followHead, refreshPanel, update } from "./update.js";
import { darkness } from "./views/colors.js";
import { redraw, showCopied } from "./views/continuation.js";
import { showChosen } from "./views/chosen.js";
import { showContributions } from "./views/contributions.js";
import { openNgrams, showNgrams } from "./views/ngrams.js";
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
import { drawWires, showEnds, showNetwork, showThumbnails } from "./views/network.js";
import { showNext } from "./views/next.js";
import { followCircuit } from "./views/panels.js";
import { dimPatches, drawPatches } from "./views/patching.js";
import "./views/save.js";
import { showFormation } from "./views/scores.js";
import { showStep } from "./views/steps.js";
import { buildText, drawArcs, showPinned, showText, showTextState } from "./views/text.js";
import { showLoss, showMoment } from "./views/training.js";

// The map is smaller below a step that draws vectors.
const SELECTED_PAIR = [showStep, drawMap, showLegends, showKeyEdits, markLens];
const SELECTED_TOKEN = [showText, showNext, showContributions, showEnds, showMlp, showNgrams,
  showChosen];

react(update, {
  view: [
    dimPatches, buildText, showTextState, showThumbnails, showNetwork, showHead,
    ...SELECTED_PAIR, ...SELECTED_TOKEN, showMoment, showEdits, showLoss, openNgrams,
    showBig,
  ],
  head: [showMlp, showNetwork, showHead, ...SELECTED_PAIR, ...SELECTED_TOKEN, followHead],
  hover: [...SELECTED_PAIR, ...SELECTED_TOKEN],
  pin: [...SELECTED_PAIR, ...SELECTED_TOKEN, followCircuit, showPinned, keepAddress],
  bar: [showNext, showContributions, showMlp, followCircuit, keepAddress],
  relative: [showNext, showContributions],
  mlp: [showNetwork, showMlp, drawMap, keepAddress],
  stage: [showHead, ...SELECTED_PAIR, keepAddress],
  big: [showBig, drawMap, refreshPanel, keepAddress],
  measure: [showNetwork, refreshPanel, keepAddress],
  seed: [redraw],
  color: [showText, showLegends, showNgrams, showChosen, keepAddress],
  token: [showText, showLegends, showChosen, keepAddress],
  ngrams: [showText, showNgrams, showCopied],
});

$("reset").onclick = reset;
addEventListener("hashchange", () => restart(readAddress()));
darkness.addEventListener("change", () => {
  update();
  drawPatches();
});
const sizes = new ResizeObserver(() => {
  document.documentElement.style.setProperty("--bar", `${$("bar").offsetHeight}px`);
  for (const draw of [drawMap, drawArcs, drawWires, showLoss, showFormation, drawPatches,
    showChosen]) {
    requestAnimationFrame(draw); // not here: drawing changes sizes
  }
});
for (const id of ["map", "text", "network", "bar", "panels"]) sizes.observe($(id));
showHeader();
restart(readAddress());
