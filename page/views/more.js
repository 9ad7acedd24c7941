// The page is calm until More is pressed: a control of the class `extra` is on show then, or if what it
// sets differs from how the page opens. None is lost.

import { change, initial, state } from "../state.js";
import { $ } from "./elements.js";

/** Of a control, by its id: whether it is in use. */
const IN_USE = {
  "color-choice": ({ color }) => color !== initial().color,
  "measure-choice": ({ measure }) => measure !== initial().measure,
  stages: ({ stage }) => stage !== "weights",
  "instead-choice": ({ instead }) => instead !== "zero",
  "key-edit": ({ edits, color }) => color === "probability" || edits.some((word) => /^(hide|move)/.test(word)),
  more: ({ panel }) => panel !== null,
  big: ({ big }) => big !== null,
};

export function showMore() {
  const { more } = state;
  document.body.classList.toggle("calm", !more);
  $("all").textContent = more ? "Less" : "More";
  for (const [id, isUsed] of Object.entries(IN_USE)) $(id).classList.toggle("used", isUsed(state));
  for (const term of document.querySelectorAll("[data-term]")) term.tabIndex = more ? 0 : -1;
  for (const part of document.querySelectorAll("#network :is(.opens, .end, .stream)")) {
    part.disabled = !more;
  }
}

$("all").onclick = () => change({ more: !state.more });
