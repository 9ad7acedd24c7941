// Two runs of the playground: A, which was kept, and B, which is on show. Their curves are in one
// chart; the panel shows the map of the selected head of each.

import { range, triangle } from "../engine/numbers.js";
import { headName, last, sizes, snapshots } from "../run.js";
import { addressOf, carried, carry, linkTo, namesOf, setting } from "./setting.js";
import { change, state } from "../state.js";
import { drawCells, picture } from "../views/cells.js";
import { theme } from "../views/colors.js";
import { addPanel, el } from "../views/elements.js";
import { count, number, percent, visible } from "../views/format.js";
import { CURVES, showLoss } from "../views/training.js";

const figures = [0, 1].map(() => ({ canvas: el("canvas"), caption: el("figcaption"), source: el("canvas") }));
addPanel("compare-section", "The selected head of A, when it was kept, and of B, this run. " +
  "Loss and accuracy are those on validation sequences.",
  el("div", { className: "pair" }, ...figures.map(({ canvas, caption }) =>
    el("figure", {}, caption, canvas))));

/** The loss and the accuracy, with those of A, if it was trained. */
export function showLosses() {
  const { kept } = state, line = (y, title, kind = "", share = undefined) =>
    ({ y, title: `A: ${title}`, kind: `${kind} kept`, share, at: kept.steps });
  showLoss(!kept?.steps ? [] : [line(kept.loss, "loss"), ...CURVES.map(({ title, kind, i }) =>
    line(kept.accuracy[i], title, kind, "accuracy"))], true);
}

/** The selected head of this run, and where the run is. */
function shown() {
  const { head, measure, view: { tokens, pass, snapshot } } = state;
  const { step, lens_loss, accuracy: [accuracy] } = snapshots[snapshot];
  return { step, loss: lens_loss[sizes.L], accuracy, tokens: tokens.map(visible), weights: [...pass.attention[head]],
    head: `${headName(head)}, ${measure.name} ${measure.text(measure.at(snapshot)[head])}` };
}

export function showCompared() {
  const { kept } = state, names = kept ? namesOf(kept) : ["", "this setting"];
  [kept?.map, shown()].forEach((each, i) => {
    const { canvas, caption, source } = figures[i];
    canvas.hidden = !each;
    caption.textContent = !each ? "A: Keep as A, above, keeps a run to compare with." : `${"AB"[i]}: ${names[i]}. ${each.head}. ` +
      `Step ${count(each.step)}, loss ${number(each.loss)}` +
      (Number.isFinite(each.accuracy) ? `, accuracy ${percent(each.accuracy)}.` : ".");
    if (!each) return;
    const { tokens, weights } = each, T = tokens.length, name = (t) => tokens[t];
    picture(source, T, T, (pixels) => range(T).forEach((q) => range(q + 1).forEach((k) => {
      pixels[q * T + k] = theme().weight.pixels[Math.round(255 * Math.sqrt(weights[triangle(q) + k]))];
    })));
    drawCells(canvas, source, { across: name, down: name });
  });
}

/** Keep this run as A: its curve and the map of its selected head. If a link compares it with
 * another one, go on to that. */
export function keep() {
  const each = (part) => snapshots.map(part);
  const kept = { setting, steps: each(({ step }) => step), loss: each(({ lens_loss }) => lens_loss[sizes.L]),
    accuracy: [0, 1].map((i) => each(({ accuracy }) => accuracy[i])), map: shown() };
  carry({ A: kept });
  if (other()) return location.assign(other() + location.hash);
  history.replaceState(null, "", linkTo(kept) + location.hash);
  change({ kept });
}

/** The address of B, if a link to it led here, to A. */
export const other = () =>
  (carried.next && location.search === new URL(carried.next.from, location).search
    ? carried.next.to : null);

export function goToA() {
  const { kept } = state, from = addressOf(kept.setting);
  carry({ next: { from, to: linkTo(kept) } });
  location.search = from;
}

/** A line about A and B, if there is an A. */
export function comparison() {
  const { kept } = state;
  if (!kept) return [];
  const [a, b] = namesOf(kept), isSame = ["seed", "batch_size"].every((key) => kept.setting[key] === setting[key]);
  const A = el("b", { className: "kept" }, `A: ${a}`), B = el("b", {}, `B: ${b}`);
  if (!kept.steps) return ["This link compares ", A, " with ", B, ". Press Go to A, and train it first."];
  const at = `, kept at step ${count(kept.map.step)}. `;
  if (a === b) return [A, at, "Now change one setting, to train B on the same sequences."];
  return [A, at, B, `, on ${isSame ? "the same" : "other"} sequences${last() ? "." : ": press Train."}`];
}
