// The panel of the circuit of one prediction: the strongest nodes over positions and layers.

const traced = { said: "", key: "", circuit: null, minus: null };
const countChoice = el("select", {}, ...[10, 20, 40, 100].map((n) => el("option", {}, `${n}`)));
countChoice.value = 20;
const minusRunnerUp = el("input", { type: "checkbox", checked: true });
const graph = el("div", { className: "scroll" });
const readCircuit = el("output");

addPanel("circuit-section", "With fixed attention weights, normalization factors and activation gates, " +
  "the model is linear: every edge from an embedding, a head or a neuron to a later one or to the " +
  "logit has a number, and the edges into the logit and the biases sum to the logit. The graph shows " +
  "what was added, not why a head attended there. Select a token or a bar above to trace another " +
  "prediction; click a node to ablate it.",
el("div", { className: "controls" }, el("label", {}, "strongest nodes ", countChoice),
  el("label", {}, minusRunnerUp, " minus runner-up")),
readCircuit, graph);

const colorOf = (value) => theme.score.css[value < 0 ? 40 : 215];
const nodeName = ({ rank, index, position }) => (rank === 2 * L ? "logit"
  : `${rank < 0 ? "embedding" : `L${rank >> 1}${rank & 1 ? " neuron " : "H"}${index}`} at ` +
    place("token", position));

/** Trace the selected prediction, without edits. */
function showCircuit() {
  if (!settled()) return;
  const t = queryOnShow(), { snapshot, before } = view;
  const best = ranked(rowOf(before.logits, t), 2), plus = state.bar ?? best[0];
  const minus = minusRunnerUp.checked && V > 1 ? best.find((id) => id !== plus) : null;
  const key = [view.turn, t, plus, minus].join();
  if (traced.key !== key) {
    const circuit = new Circuit(engineFor("plain", snapshot), t, plus, minus);
    Object.assign(traced, { key, circuit, plus, minus, said: "" });
  }
  drawCircuit();
}

function drawCircuit() {
  const { circuit, plus, minus } = traced, { T, logit } = circuit;
  const nodes = circuit.nodes.slice(0, Number(countChoice.value));
  const into = circuit.edges(logit, nodes);
  const between = nodes.filter(({ rank }) => rank >= 0)
    .flatMap((node) => circuit.edges(node, nodes).edges);
  const edges = [...into.edges, ...between].sort((a, b) => Math.abs(b.value) - Math.abs(a.value))
    .slice(0, 3 * nodes.length);
  const shown = sum(into.edges.map((edge) => edge.value));
  readCircuit.textContent = `Logit of ${quoted(vocab[plus])}` +
    `${minus === null ? "" : ` minus logit of ${quoted(vocab[minus])}`} after ` +
    `${place("token", T - 1)}: ${signed(logit.value, 2)}. Shown: ${nodes.length} of ` +
    `${count(circuit.nodes.length)} nodes, whose edges into the logit sum to ${signed(shown, 2)}` +
    `${hasBiases ? `; biases ${signed(into.biases, 2)}` : ""}. ` +
    `${traced.said || "Point at a node or an edge to see its number."}`;

  // A column for each position with a node, as wide as its fullest row; a row for each rank.
  const cells = Map.groupBy(nodes, (node) => `${node.position},${node.rank}`);
  const columns = [...new Set([...nodes.map((node) => node.position), T - 1])].sort((a, b) => a - b);
  const [tall, left] = [2.6 * rem(), 6 * rem()];
  const widths = columns.map((t) =>
    Math.max(2, ...range(2 * L + 1).map((r) => cells.get(`${t},${r - 1}`)?.length ?? 0)));
  const side = clamp((graph.clientWidth - left) / sum(widths), 1.5 * rem(), 3 * rem());
  const width = left + side * sum(widths);
  const starts = new Map(columns.map((t, i) => [t, [left + side * sum(widths.slice(0, i)), widths[i]]]));
  const height = (2 * L + 3) * tall, y = (r) => height - (r + 2) * tall;
  const center = (t) => starts.get(t)[0] + (starts.get(t)[1] * side) / 2;
  const at = new Map([[logit, [center(T - 1), y(2 * L)]]]);
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
    const [x, y] = at.get(node), name = `${nodeName(node)}: ${signed(node.value, 3)} over all paths`;
    const spot = svg("g", { class: "node", role: "button", tabindex: 0, "aria-label": name },
      svg("title", {}, name), svg("circle", { cx: x, cy: y, r: 0.62 * rem(),
        stroke: colorOf(node.value) }),
      text(x, y, node.rank < 0 ? visible(view.tokens[node.position])
        : node.rank & 1 ? "n" : `H${node.index}`));
    spot.onclick = () => ablateNode(node);
    spot.onkeydown = ({ key }) => key === "Enter" && ablateNode(node);
    return spot;
  });
  const rows = ["embedding", ...range(L).flatMap((l) => [`L${l} heads`, `L${l} MLP`]), "logit"];
  const size = { viewBox: `0 0 ${width} ${height}`, width, height };
  graph.replaceChildren(svg("svg", { ...size, class: "circuit" },
    ...rows.map((name, i) => text(0, y(i - 1), name, "rank")), ...lines, ...spots,
    text(...at.get(logit), quoted(vocab[plus])),
    ...columns.map((t) => text(center(t), height - tall / 3, `${t} ${visible(view.tokens[t])}`))));
}

/** The prediction with a node ablated, and the change that the graph expects. */
function ablateNode(node) {
  const { circuit: { logit: { value }, T }, plus, minus } = traced, { rank, index, position } = node;
  const layer = Math.max(0, rank >> 1);
  const engine = engineFor("circuit", view.snapshot);
  const logits = engine.run(view.pass.ids, [
    rank < 0 ? { layer, position, row: new Float32Array(C) }
      : rank & 1 ? { layer, position, neuron: index }
        : { layer, position, head: index, row: new Float32Array(D) },
  ]);
  const row = rowOf(logits, T - 1), now = row[plus] - (minus === null ? 0 : row[minus]);
  traced.said = `Without ${nodeName(node)}, the graph predicts ${signed(value - node.value, 2)}, and ` +
    `the model computes ${signed(now, 2)}.`;
  drawCircuit();
}

for (const choice of [countChoice, minusRunnerUp]) choice.onchange = showCircuit;
PANELS.push({ key: "circuit", title: "Circuit", show: showCircuit });
