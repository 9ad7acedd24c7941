// The panel of the circuit of a logit or a score: the strongest nodes over positions and layers.

import { Circuit, logitGoal, scoreGoal } from "../engine/circuit.js";
import { clamp, indexOfLargest, largestOf, range, ranked, sum } from "../engine/numbers.js";
import { engineFor, headName, layerAndHead, rowOf, sizes, vocab } from "../run.js";
import { edited, pairOnShow, place, queryOnShow } from "../selection.js";
import { settled, state } from "../state.js";
import { colorOf } from "./colors.js";
import { addPanel, el, rem, showColumn, svg } from "./elements.js";
import { count, quoted, signed, visible } from "./format.js";

const { L, C, D, V, hidden } = sizes;
const rowOfRank = (rank) => (hidden ? rank : rank >> 1); // without MLPs, ranks are even
let traced = {}; // {key, circuit, name of the goal, says: what is traced, said: of a node}
const countChoice = el("select", {}, ...[10, 20, 40, 100].map((n) => el("option", {}, `${n}`)));
countChoice.value = 20;
const goalChoice = el("select", {}, ...["logit minus runner-up", "logit", "attention score"]
  .map((goal) => el("option", {}, goal)));
const graph = el("div", { className: "scroll" });
const readCircuit = el("output");

addPanel("circuit-section", "What adds to a logit or an attention score (orange), or subtracts " +
  "from it (blue). Click a node for the effect of ablating it.",
el("details", { className: "quiet small" }, el("summary", {}, "How to read it"),
  "With fixed attention weights, normalization factors and activation gates (and a fixed query, " +
  "for an attention score), the model is linear: each edge from an embedding, a head or a neuron " +
  "to a later one or to the goal has a number, and the edges into the goal and the biases sum to " +
  "it. Paths may also run through nodes that are not shown. Select a token, a bar or a head above " +
  "to trace another goal. To see why a head attended to a token, trace its attention score."),
el("div", { className: "controls" }, el("label", {}, "trace ", goalChoice),
  el("label", {}, "strongest nodes ", countChoice)),
readCircuit, graph);

const nodeName = ({ rank, index, position }) => (rank === traced.circuit.goal.rank ? traced.name
  : `${rank < 0 ? "embedding" : `L${rank >> 1}${rank & 1 ? " neuron " : "H"}${index}`} at ` +
    place("token", position));

/** Trace the selected prediction, or the selected head's score, without edits, if the panel is open. */
export function showCircuit() {
  if (!settled() || state.panel !== "circuit") return;
  const { view } = state, t = queryOnShow(), { q, k } = pairOnShow(), { snapshot, before } = view;
  const [ofScore, relative] = [2, 0].map((choice) => goalChoice.selectedIndex === choice);
  const best = ranked(rowOf(before.logits, t), 2), plus = state.bar ?? best[0];
  const minus = relative && V > 1 ? best.find((id) => id !== plus) : null;
  const key = [view.turn, ofScore, ...(ofScore ? [state.head, q, k] : [t, plus, minus])].join();
  if (traced.key !== key) {
    const engine = engineFor("plain", snapshot), head = headName(state.head);
    const goal = ofScore ? scoreGoal(engine, ...layerAndHead(state.head), q, k)
      : logitGoal(engine, t, plus, minus);
    const rival = minus === null ? "" : ` minus logit of ${quoted(vocab[minus])}`;
    traced = { key, circuit: new Circuit(engine, goal), said: "",
      name: ofScore ? "attention score" : "logit",
      sign: ofScore ? head
        : quoted(vocab[plus]) + (minus === null ? "" : ` − ${quoted(vocab[minus])}`),
      says: ofScore ? `Attention score of ${head}, ${place("query", q)}, ${place("key", k)}`
        : `Logit of ${quoted(vocab[plus])}${rival} after ${place("token", t)}` };
  }
  drawCircuit();
}

function drawCircuit() {
  const { circuit, circuit: { T, goal }, name, sign, says, said } = traced;
  const { tokens } = state.view;
  const nodes = circuit.nodes.slice(0, Number(countChoice.value));
  const into = circuit.edges(goal, nodes);
  const between = nodes.filter(({ rank }) => rank >= 0)
    .flatMap((node) => circuit.edges(node, nodes).edges);
  const edges = [...into.edges, ...between].sort((a, b) => Math.abs(b.value) - Math.abs(a.value))
    .slice(0, 3 * nodes.length);
  const shown = sum(into.edges.map((edge) => edge.value));
  readCircuit.textContent = (edited() ? "Without the edits: " : "") +
    `${says}: ${signed(goal.value, 2)}. The direct edges of ` +
    `${nodes.length} of ${count(circuit.nodes.length)} nodes add ${signed(shown, 2)}, the rest ` +
    `${signed(goal.value - shown, 2)}. ${said || "Point at a node or an edge for its number."}`;

  // A column for each position with a node, as wide as its fullest row; a row for each rank.
  const cells = Map.groupBy(nodes, (node) => `${node.position},${node.rank}`);
  const columns = [...new Set([...nodes.map((node) => node.position), T - 1])]
    .sort((a, b) => a - b);
  const [tall, left] = [2.6 * rem(), 6 * rem()];
  const widths = columns.map((t) =>
    Math.max(2, ...range(goal.rank + 1).map((r) => cells.get(`${t},${r - 1}`)?.length ?? 0)));
  const labelOf = ({ rank, index, position }) => (rank < 0 ? visible(tokens[position])
    : rank & 1 ? `${index}` : `H${index}`);
  const wide = (node) => (0.5 + 0.45 * Math.max(2, labelOf(node).length)) * rem();
  const least = largestOf(nodes.map(wide)) + 3;
  const side = clamp((graph.clientWidth - left) / sum(widths), least, Math.max(least, 3 * rem()));
  const width = left + side * sum(widths);
  const top = rowOfRank(goal.rank), height = (top + 3) * tall;
  const y = (rank) => height - (rowOfRank(rank) + 2) * tall;
  const center = (t, i = columns.indexOf(t)) =>
    left + side * (sum(widths.slice(0, i)) + widths[i] / 2);
  const at = new Map([[goal, [center(T - 1), y(goal.rank)]]]);
  for (const group of cells.values()) {
    group.forEach((node, i) => at.set(node,
      [center(node.position) + (i - (group.length - 1) / 2) * side, y(node.rank)]));
  }
  const text = (x, y, words, kind = "") => svg("text", { x, y, class: kind }, words);
  const most = Math.max(...edges.map((edge) => Math.abs(edge.value)));
  const lines = edges.map(({ from, to, value }) => {
    const [[x1, y1], [x2, y2]] = [at.get(from), at.get(to)];
    return svg("line", { x1, y1, x2, y2, stroke: colorOf(value),
      "stroke-width": 0.5 + (5 * Math.abs(value)) / most },
    svg("title", {}, `${nodeName(from)} → ${nodeName(to)}: ${signed(value, 3)}`));
  });
  const spots = nodes.map((node) => {
    const [x, y] = at.get(node);
    const label = `${nodeName(node)}: ${signed(node.value, 3)} directly and through others`;
    const spot = svg("g", { class: "node", role: "button", tabindex: 0, "aria-label": label },
      svg("title", {}, label), svg("rect", { x: x - wide(node) / 2, y: y - 0.62 * rem(),
        width: wide(node), height: 1.24 * rem(), rx: 0.62 * rem(), stroke: colorOf(node.value) }),
      text(x, y, labelOf(node)));
    spot.onclick = () => ablateNode(node);
    spot.addEventListener("keydown", ({ key }) => key === "Enter" && ablateNode(node));
    return spot;
  });
  const rows = ["embedding", ...range(L).flatMap((l) =>
    [`L${l} heads`, ...(hidden ? [`L${l} neurons`] : [])])];
  const size = { viewBox: `0 0 ${width} ${height}`, width, height };
  graph.replaceChildren(svg("svg", { ...size, class: "circuit" },
    ...[...rows.slice(0, top + 1), name].map((row, i) =>
      text(0, height - (i + 1) * tall, row, "rank")),
    ...lines, ...spots, text(Math.min(center(T - 1), width - 0.25 * rem() * sign.length),
      y(goal.rank) - rem() / 2, sign, "goal"),
    ...columns.map((t) => text(center(t), height - tall / 3, `${t} ${visible(tokens[t])}`))));
  if (!said) showColumn(graph.firstChild, center(T - 1)); // on a narrow screen, the goal first
}

/** The prediction or score with a node ablated, and the change that the graph expects. */
function ablateNode(node) {
  const { goal } = traced.circuit, { rank, index, position } = node;
  const layer = Math.max(0, rank >> 1), engine = engineFor("circuit", state.view.snapshot);
  engine.run(state.view.pass.ids, [
    rank < 0 ? { layer, position, row: new Float32Array(C) }
      : rank & 1 ? { layer, position, neuron: index }
        : { layer, position, head: index, row: new Float32Array(D) },
  ]);
  const best = indexOfLargest(rowOf(engine.take("logits", V), queryOnShow()));
  traced.said = `Without ${nodeName(node)}, the next token would be ${quoted(vocab[best])}; ` +
    `the graph predicts ${signed(goal.value - node.value, 2)}, and the model computes ` +
    `${signed(goal.now(engine), 2)}.`;
  drawCircuit();
}

for (const choice of [countChoice, goalChoice]) choice.onchange = showCircuit;
