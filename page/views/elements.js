// Elements of the page. Text from a run (prompt, vocabulary, config) enters it as text nodes and
// never as markup.

import { clamp } from "../engine/numbers.js";

export const $ = (id) => document.getElementById(id);

export function el(tag, properties = {}, ...children) {
  const element = Object.assign(document.createElement(tag), properties);
  element.append(...children);
  return element;
}

export const button = (onclick, properties, ...content) =>
  el("button", { type: "button", onclick, ...properties }, ...content);

export function svg(tag, attributes = {}, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

/** Replace the children of an element, and keep the focus on the child with the same index. */
export function refill(place, ...children) {
  const stops = () => [...place.querySelectorAll("button, [tabindex]")];
  const focused = stops().indexOf(document.activeElement);
  place.replaceChildren(...children);
  if (focused >= 0) stops()[Math.min(focused, stops().length - 1)]?.focus({ preventScroll: true });
}

/** A word that shows its meaning under the pointer or the focus. */
export function term(name, text = name) {
  const span = el("span", { tabIndex: document.body.classList.contains("calm") ? -1 : 0 }, text);
  span.dataset.term = name;
  return span;
}

export const row = (...cells) => el("tr", {}, ...cells);
export const cell = (...content) => el("td", {}, ...content);
export const numeral = (text) => el("td", { className: "number" }, text);
export const header = (text, scope = "col") => el("th", { scope }, text);
export const p = (...content) => el("p", {}, ...content);

/** A bar whose length shows a probability. */
export function gauge(kind, probability) {
  const bar = el("div", { className: `gauge ${kind}` });
  bar.style.width = `${100 * probability}%`;
  return bar;
}

export const rem = () => parseFloat(getComputedStyle(document.documentElement).fontSize);

export const ARROWS = {
  ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1],
};

// Handle the arrow keys with `move(target, across, down)`, so that the page does not scroll.
export const withArrows = (move) => (event) => {
  if (!(event.key in ARROWS)) return;
  move(event.target, ...ARROWS[event.key]);
  event.preventDefault();
  event.stopPropagation();
};

/** Scroll a frame, but not the page, so that a part of it is visible. */
export function reveal(frame, { offsetTop, offsetHeight, offsetLeft, offsetWidth }) {
  frame.scrollTop = clamp(frame.scrollTop, offsetTop + offsetHeight - frame.clientHeight, offsetTop);
  frame.scrollLeft =
    clamp(frame.scrollLeft, offsetLeft + offsetWidth - frame.clientWidth, offsetLeft);
}

/** Scroll an element that is too wide for the screen so that `left` is in the middle. */
export function showColumn(wide, left) {
  wide.parentElement.scrollLeft = left - wide.parentElement.clientWidth / 2;
}

/** Let the browser save a text or bytes as a file. */
export function saveFile(name, content) {
  const link = el("a", { href: URL.createObjectURL(new Blob([content])), download: name });
  link.click();
  URL.revokeObjectURL(link.href);
}

/** Add the section of a panel under "More". */
export function addPanel(id, about, ...children) {
  const note = el("p", { className: "quiet small" }, about);
  $("panels").append(el("section", { id, hidden: true }, note, ...children));
}
