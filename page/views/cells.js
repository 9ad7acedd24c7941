// Grids of cells: a canvas with one pixel per cell, and its enlargement with names along it.

import { theme } from "./colors.js";
import { rem } from "./elements.js";

// Draw one pixel per cell; a clear pixel shows the background.
export function picture(canvas, width, height, painter) {
  canvas.width = width;
  canvas.height = height;
  const image = new ImageData(width, height);
  painter(new Uint32Array(image.data.buffer));
  canvas.getContext("2d").putImageData(image, 0, 0);
}

const drawn = new WeakMap(); // of each canvas: how to draw its cells with a context

/** Draw a canvas again with another context, `sharp` pixels for each pixel of the page. */
export const redrawCells = (canvas, context, sharp) => drawn.get(canvas)(context, sharp);

/** Enlarge `source`, a canvas with one pixel per cell, with names along it: `across` and `down` are
 * functions of an index. Cells are square, as many down as across, unless `tall` is set; `look`: [column, row] to frame. */
export function drawCells(canvas, source, { across, down, tall, look, margin }) {
  const sharp = devicePixelRatio;
  const { width: columns, height: rows } = source;
  const [left, top] = [margin ?? 1.5 * rem(), 1.5 * rem()];
  let side = (canvas.clientWidth - left - 2) / columns;
  if (side > 4) side = Math.floor(side * sharp) / sharp; // cells of equal size
  const step = [side, tall ?? side];
  const height = Math.ceil(top + (tall ? rows * tall : canvas.clientWidth - left - 2) + 2);
  Object.assign(canvas.dataset, { left, top, side, tall: step[1] });
  canvas.style.height = `${height}px`;
  canvas.width = Math.round(canvas.clientWidth * sharp);
  canvas.height = Math.round(height * sharp);

  drawn.set(canvas, (context, sharp) => {
    const { panel, text, mark } = theme();
    const area = [left, top, columns * side, rows * step[1]];
    context.scale(sharp, sharp);
    context.fillStyle = panel;
    context.fillRect(0, 0, canvas.clientWidth, height);
    context.clearRect(...area); // what is masked shows the hatching of the background
    context.imageSmoothingEnabled = side * sharp < 1; // enlarged, a cell keeps its one color
    context.drawImage(source, ...area);

    const fitting = Math.min(side, 1.1 * rem());
    const letters = side >= 0.5 * rem();
    const enough = [5, 10, 20, 50, 100, 200, 500].find((n) => n * side > 2.2 * rem()) ?? columns;
    const name = (words, x, y, align, room, here) => {
      context.textAlign = align;
      context.fillStyle = here ? mark : text;
      context.fillText(words, x, y, room);
    };
    context.textBaseline = "middle";
    context.font = letters
      ? `${0.85 * fitting}px ui-monospace, "DejaVu Sans Mono", monospace`
      : `${0.65 * rem()}px system-ui, sans-serif`;
    for (let i = 0; i < columns; i += letters ? 1 : enough) {
      name(letters ? across(i) : `${i}`, left + (i + 0.5) * side, top * 0.6, "center",
        letters ? side : 3 * rem(), look?.[0] === i);
    }
    if (tall) context.font = `${0.75 * rem()}px system-ui, sans-serif`;
    for (let i = 0; i < rows; i += letters || tall ? 1 : enough) {
      name(letters || tall ? down(i) : `${i}`, left * 0.9, top + (i + 0.5) * step[1], "right",
        left * 0.85, look?.[1] === i);
    }
    if (!look) return;
    const [x, y] = look.map((at, i) => (at === null ? null : [left, top][i] + at * step[i] - 1));
    context.strokeStyle = mark;
    if (y !== null) context.strokeRect(left - 1, y, columns * side + 2, step[1] + 2);
    context.lineWidth = 2.5;
    if (x !== null && y !== null) context.strokeRect(x, y, side + 2, step[1] + 2);
  });
  redrawCells(canvas, canvas.getContext("2d"), sharp);
}

/** [column, row] under a pointer, or null. */
export function cellUnder(canvas, event) {
  const { left, top, side, tall } = canvas.dataset;
  const x = Math.floor((event.offsetX - left) / side);
  const y = Math.floor((event.offsetY - top) / tall);
  return x >= 0 && y >= 0 ? [x, y] : null;
}
