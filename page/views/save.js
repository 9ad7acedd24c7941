// Saving maps and charts as SVG.

import { data } from "../run.js";
import { redrawCells } from "./cells.js";
import { theme } from "./colors.js";
import { button, saveFile, svg } from "./elements.js";

const LOOKS = ["fill", "stroke", "stroke-width", "stroke-dasharray", "stroke-linejoin", "opacity",
  "paint-order", "font-family", "font-size", "font-style", "font-weight", "text-anchor",
  "dominant-baseline"];

const EDGE = 10; // around a picture

/** What a canvas draws, as elements of an SVG. It has the calls that cells.js makes. */
class Pen {
  constructor() {
    Object.assign(this, { parts: [], fillStyle: "", strokeStyle: "", lineWidth: 1, font: "" });
  }

  scale() {}

  rect(x, y, width, height, looks) {
    this.parts.push(svg("rect", { x, y, width, height, ...looks }));
  }

  fillRect(...box) { this.rect(...box, { fill: this.fillStyle }); }

  /** What is masked is hatched. */
  clearRect(...box) { this.rect(...box, { fill: "url(#hatch)" }); }

  strokeRect(...box) {
    this.rect(...box, { fill: "none", stroke: this.strokeStyle, "stroke-width": this.lineWidth });
  }

  /** A rectangle for each run of equal pixels. */
  drawImage(source, left, top, wide, tall) {
    const { width, height } = source, [w, h] = [wide / width, tall / height];
    const { data: bytes } = source.getContext("2d").getImageData(0, 0, width, height);
    const colors = new Uint32Array(bytes.buffer);
    for (let i = 0, run; i < colors.length; i += run) {
      run = 1;
      while ((i + run) % width && colors[i + run] === colors[i]) run++;
      if (!colors[i]) continue;
      const fill = `rgb(${bytes.subarray(4 * i, 4 * i + 3).join(" ")})`;
      this.rect(left + (i % width) * w, top + Math.floor(i / width) * h, run * w, h,
        { fill, "shape-rendering": "crispEdges" });
    }
  }

  fillText(words, x, y) {
    const text = svg("text", { x, y, fill: this.fillStyle, "dominant-baseline": "central",
      "text-anchor": { left: "start", right: "end" }[this.textAlign] ?? "middle" }, words);
    text.style.font = this.font;
    this.parts.push(text);
  }
}

/** A copy of an <svg> of the page, with the looks that the page's style gives it. */
function copyOf(chart) {
  const copy = chart.cloneNode(true), originals = chart.querySelectorAll("*");
  copy.querySelectorAll("*").forEach((part, i) => {
    const style = getComputedStyle(originals[i]);
    for (const look of LOOKS) part.setAttribute(look, style.getPropertyValue(look));
    part.removeAttribute("class");
  });
  return [...copy.children];
}

/** Of a canvas of cells, an element with an <svg>, or the picture of the network. */
function partsOf(place) {
  const pen = new Pen(), { panel, text } = theme();
  const frame = place.matches("canvas, #network") ? place : place.querySelector("svg");
  const { left, top, width, height } = frame.getBoundingClientRect();
  const box = (part) => {
    const { x, y, width, height } = part.getBoundingClientRect();
    return [x - left, y - top, width, height];
  };
  pen.fillStyle = panel;
  pen.fillRect(-EDGE, -EDGE, width + 2 * EDGE, height + 2 * EDGE);
  if (place.matches("canvas")) redrawCells(place, pen);
  else pen.parts.push(...copyOf(place.querySelector("svg")));
  for (const part of place.querySelectorAll("button:not(.stream), .norm, .side b, .pick *")) {
    const [x, y, w, h] = box(part), { fontWeight, fontSize, fontFamily } = getComputedStyle(part);
    Object.assign(pen, { fillStyle: panel, strokeStyle: text,
      font: `${fontWeight} ${fontSize} ${fontFamily}` });
    if (part.matches("canvas")) {
      pen.clearRect(x, y, w, h);
      pen.drawImage(part, x, y, w, h);
    } else if (part.matches("button, .norm")) {
      pen.fillRect(x, y, w, h);
      pen.strokeRect(x, y, w, h);
    }
    if (part.matches(".pick, .pick > span")) continue; // their children have the words
    Object.assign(pen, { fillStyle: text, textAlign: "left" });
    pen.fillText(part.textContent, x + (part.matches("button, .norm") ? 5 : 0), y + h / 2);
  }
  const hatch = svg("pattern", { id: "hatch", width: 6, height: 6, patternUnits: "userSpaceOnUse" },
    svg("path", { d: "M0 6L6 0", stroke: text, opacity: 0.4 }));
  const size = [width, height].map((side) => side + 2 * EDGE);
  return svg("svg", { viewBox: `${-EDGE} ${-EDGE} ${size.join(" ")}`, width: size[0],
    height: size[1] }, hatch, ...pen.parts);
}

/** A button that saves what `find()` returns. */
export const saveButton = (name, find) => button(
  () => saveFile(`${data.run.name} ${name}.svg`,
    new XMLSerializer().serializeToString(partsOf(find()))),
  { className: "save", title: "save as SVG", ariaLabel: `save ${name} as SVG` }, "SVG");
