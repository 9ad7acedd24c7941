// Vectors of a head as rows of bars, one bar per channel, with exact numbers under the pointer.

import { largestOf, range } from "../engine/numbers.js";
import { colorOf } from "./colors.js";
import { el, svg } from "./elements.js";
import { number } from "./format.js";

/** Draw vectors below each other, each to its own scale. A row is [its name, its numbers, a sum or
 * nothing], and `says` is a function of a channel. */
export function channels(rows, says) {
  const D = rows[0][1].length, height = 2 * rows.length;
  const limits = rows.map(([, numbers]) => largestOf(numbers.map(Math.abs)) || 1);
  const bar = (value, x, row) => {
    const tall = (0.9 * Math.abs(value)) / limits[row];
    return svg("rect", { x: x + 0.1, width: 0.8, y: 2 * row + 1 - (value > 0 ? tall : 0),
      height: tall, fill: colorOf(value) });
  };
  const columns = range(D).map((i) => svg("g", { "data-says": `channel ${i}: ${says(i)}` },
    svg("rect", { x: i, width: 1, height }), ...rows.map(([, numbers], row) =>
      bar(numbers[i], i, row))));
  const drawing = svg("svg", { viewBox: `0 0 ${D} ${height}`, preserveAspectRatio: "none" },
    ...columns);
  drawing.style.gridRow = `1 / span ${rows.length}`;
  drawing.style.height = `${1.25 * rows.length}rem`;
  return el("div", { className: "channels" }, drawing, ...rows.flatMap(([name, , sum], row) =>
    [el("b", {}, name), el("span", {}, sum ?? `± ${number(limits[row], 2)}`)]));
}
