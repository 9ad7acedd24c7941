// The keys.

import { goTo, pin, reset, setStage, toggleHead, undo } from "../actions.js";
import { change, STAGES, state } from "../state.js";
import { showNextBig } from "./big.js";
import { $, ARROWS, cell, el, row } from "./elements.js";
import { moveInGrid } from "./network.js";
import { goToStep, STEPS } from "./steps.js";

const KEYS = [
  ["← → ↑ ↓", "select another head; in the text, a map or a table, another token"],
  ["t", "type in the text; Esc leaves it", () => $("typed").focus()],
  ["Ctrl-Z", "undo typing and appended tokens"],
  ["1 … 5", "go to a step"],
  ["[", "previous snapshot", () => goTo(state.snapshot - 1)],
  ["]", "next snapshot", () => goTo(state.snapshot + 1)],
  ["p", "train or play, or stop", () => ($("train") ?? $("play")).click()],
  ["x", "ablate the selected head", () => toggleHead(state.head)],
  ["h", "hide the key of the selected token, or show it", () => $("hide-key").click()],
  ["u", "undo all edits", undo],
  ["r", "reset everything but the text", reset],
  ["s", "scores, mask, softmax",
    () => setStage(STAGES[(STAGES.indexOf(state.stage) + 1) % STAGES.length])],
  ["b", "big letters: the map; again: the network, the text, the training", showNextBig],
  ["Escape", "leave big letters, or clear the selection",
    () => (state.big ? change({ big: null }) : pin(null))],
  ["?", "show this list", () => $("about").showModal()],
];

function onKey(event) {
  if ((event.ctrlKey || event.metaKey) && event.key === "z" && !event.target.matches("textarea")) {
    event.preventDefault();
    $("typed").focus();
    document.execCommand("undo");
  }
  if (event.ctrlKey || event.metaKey || event.altKey || $("about").open) return;
  if (event.target.matches("textarea")) {
    if (event.key === "Escape") event.target.blur();
    return;
  }
  if (event.target.matches("select, input[type=number], #chosen")) return; // they use the keys themselves
  if (!state.view && !"rt?".includes(event.key)) return;
  const way = ARROWS[event.key];
  if (way && !event.target.matches("input[type=range]")) {
    if (moveInGrid(way)) event.preventDefault();
    return;
  }
  const step = Number(event.key) - 1;
  const act = STEPS[step] ? () => goToStep(step) : KEYS.find(([key]) => key === event.key)?.[2];
  if (!act) return;
  act();
  event.preventDefault();
}

$("keys").append(...KEYS.map(([keys, action]) => row(cell(el("kbd", {}, keys)), cell(action))));
addEventListener("keydown", onKey);
