// Saving a picture: what the open panel draws or, without one, the map of the selected head.

import { data } from "../data.js";
import { headName } from "../run.js";
import { state } from "../state.js";
import { redrawCells } from "./cells.js";
import { theme } from "./colors.js";
import { $, el, saveFile } from "./elements.js";

const SHARP = 3; // pixels of the picture per pixel of the page
const EDGE = 10; // pixels of the page around each drawing
const LINE = 20; // pixels of the page for a caption
const LOOKS = ["fill", "stroke", "stroke-width", "stroke-dasharray", "opacity", "paint-order",
  "font-family", "font-size", "text-anchor", "dominant-baseline"];

/** An image of an <svg>, with the looks that the page's style gives it. */
async function imageOf(drawing, width, height) {
  const copy = drawing.cloneNode(true), originals = drawing.querySelectorAll("*");
  copy.querySelectorAll("*").forEach((part, i) => {
    const style = getComputedStyle(originals[i]);
    for (const look of LOOKS) part.setAttribute(look, style.getPropertyValue(look));
  });
  copy.setAttribute("width", SHARP * width);
  copy.setAttribute("height", SHARP * height);
  const text = new XMLSerializer().serializeToString(copy);
  const image = el("img", { src: `data:image/svg+xml,${encodeURIComponent(text)}` });
  await image.decode();
  return image;
}

/** A canvas with some drawings, one below the other, and the captions of those that have one. */
async function joined(drawings) {
  const boxes = drawings.map((drawing) => drawing.getBoundingClientRect());
  const captions = drawings.map((drawing) => drawing.closest("figure")?.querySelector("figcaption").textContent);
  const canvas = el("canvas", {
    width: SHARP * (Math.max(...boxes.map(({ width }) => width)) + 2 * EDGE),
    height: SHARP * boxes.reduce((sum, { height }, i) => sum + height + EDGE + (captions[i] ? LINE : 0), EDGE),
  });
  const context = canvas.getContext("2d");
  let top = EDGE;
  for (const [i, drawing] of drawings.entries()) {
    const { width, height } = boxes[i];
    if (captions[i]) {
      context.setTransform(SHARP, 0, 0, SHARP, EDGE * SHARP, top * SHARP);
      Object.assign(context, { font: `${0.7 * LINE}px system-ui, sans-serif`, fillStyle: theme().text,
        textAlign: "left", textBaseline: "top" });
      context.fillText(captions[i], 0, 0, canvas.width / SHARP - 2 * EDGE);
      top += LINE;
    }
    context.setTransform(1, 0, 0, 1, SHARP * EDGE, SHARP * top);
    if (drawing.matches("canvas")) redrawCells(drawing, context, SHARP);
    else context.drawImage(await imageOf(drawing, width, height), 0, 0);
    top += height + EDGE;
  }
  context.resetTransform();
  context.globalCompositeOperation = "destination-over"; // behind what is drawn
  context.fillStyle = theme().panel;
  context.fillRect(0, 0, canvas.width, canvas.height);
  return canvas;
}

$("save").onclick = async () => {
  const drawn = (name) => [...document.querySelectorAll(`#${name}-section :is(canvas, svg)`)]
    .filter((each) => each.checkVisibility());
  const ofPanel = state.panel ? drawn(state.panel) : [];
  const drawings = ofPanel.length ? ofPanel : drawn("head");
  const name = ofPanel.length ? state.panel : headName(state.head);
  (await joined(drawings)).toBlob((file) => saveFile(`${data.run.name} ${name}.png`, file));
};
