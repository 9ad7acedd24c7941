// The panel of the logit lens.

import { clamp, indexOfLargest, range, ranked } from "../engine/numbers.js";
import { logProbabilities, mayGoOn } from "../engine/pass.js";
import { data } from "../data.js";
import { rowOf, sizes, snapshots, vocab } from "../run.js";
import { place, queryOnShow } from "../selection.js";
import { state } from "../state.js";
import { shade, theme } from "./colors.js";
import { $, el, header, row, showColumn, withArrows } from "./elements.js";
import { number, quoted, visible } from "./format.js";

const { L, V } = sizes;
const CANDIDATES = 3;
const names = ["embedding", ...range(L).map((l) => `after layer ${l}`)];
let lens; // of a view: {view, logPs of each layer, cells}

const lensNow = () => (lens?.view === state.view ? lens : undefined);

export async function showLens(isCurrent) {
  const { view } = state, { T, ids } = view.pass, { weight } = theme();
  const logPs = [], cells = [];
  for (let layer = 0; layer <= L; layer++) {
    const logP = logProbabilities(view.engine.lens(layer), V);
    logPs.push(logP);
    cells.push(range(T).map((t) => {
      const best = indexOfLargest(rowOf(logP, t));
      const spot = el("td", { className: best === ids[t + 1] ? "came" : "",
        tabIndex: layer + t === 0 ? 0 : -1 }, visible(vocab[best]));
      Object.assign(spot.dataset, { layer, t });
      shade(spot, weight, Math.exp(rowOf(logP, t)[best]));
      return spot;
    }));
    if (!(await mayGoOn(isCurrent))) return;
  }
  lens = { view, logPs, cells };
  const loss = snapshots[view.snapshot].lens_loss;
  const came = range(T).map((t) => header(t + 1 < T ? visible(view.tokens[t + 1]) : ""));
  $("lens").replaceChildren(
    el("thead", {}, row(header("read"), ...view.tokens.map((token) => header(visible(token))))),
    el("tbody", {}, ...names.map((name, layer) =>
      row(header(Number.isFinite(loss[layer]) ? `${name}, ${number(loss[layer], 2)} nats` : name,
        "row"), ...cells[layer]))),
    el("tfoot", {}, row(header("came next"), ...came)));
  $("lens-readout").textContent =
    `Point at a cell. Nats: mean loss on ${data.measured}, no edits.`;
  markLens();
  showColumn($("lens"), cells[0][queryOnShow()].offsetLeft);
}

export function markLens() {
  const here = queryOnShow();
  lensNow()?.cells.forEach((cells) =>
    cells.forEach((spot, t) => spot.classList.toggle("here", t === here)));
}

function readLens(spot) {
  const { view } = state, { logPs } = lensNow() ?? {};
  if (!spot || !logPs) return;
  const layer = Number(spot.dataset.layer), t = Number(spot.dataset.t);
  const logP = rowOf(logPs[layer], t);
  const p = (id) => number(Math.exp(logP[id]));
  const best = ranked(logP, CANDIDATES).map((id) => `${quoted(vocab[id])} ${p(id)}`);
  const came = t + 1 < view.pass.T
    ? `came next: ${quoted(view.tokens[t + 1])} ${p(view.pass.ids[t + 1])}` : "the text ends here";
  $("lens-readout").textContent =
    `${names[layer]}, ${place("token", t)}: ${best.join(", ")}; ${came}`;
}

$("lens").onpointerover = (event) => readLens(event.target.closest("td"));
$("lens").addEventListener("focusin", (event) => readLens(event.target.closest("td")));
$("lens").onkeydown = withArrows((spot, across, down) => {
  const all = lensNow()?.cells;
  if (!all) return;
  const cells = all[clamp(Number(spot.dataset.layer) + down, 0, L)];
  const next = cells[clamp(Number(spot.dataset.t) + across, 0, cells.length - 1)];
  spot.tabIndex = -1;
  next.tabIndex = 0;
  next.focus();
});
