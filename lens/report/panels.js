// What each panel shows of `view`, the model's pass over the text at the selected step.

// The scores of heads. `at(i)` has a number per head for snapshot i.
const FIRST = data.copies ? "induction" : "previous_token";
data.scores.sort((a, b) => (b.key === FIRST) - (a.key === FIRST));
const measures = data.scores.map(({ key, source, formula, repeats, uniform }) => ({
  key, source, uniform,
  name: key.replaceAll("_", " "),
  formula: repeats ? `${formula}; P = ${snapshots[LAST].copying.period}` : formula,
  at: (i) => snapshots[i].scores[key],
  text: (value) => number(value, 2),
}));
for (const kind of ["zero", "mean"]) {
  const instead = kind === "zero" ? "zero" : "its mean";
  measures.push({
    key: `ablation ${kind}`, kind,
    name: `ablation (${kind}, step ${snapshots[LAST].step})`,
    formula: `change in validation loss, in nats, if ${instead} replaces the head's output`,
    source: `measured at step ${snapshots[LAST].step}`,
    at: () => data.ablation[kind],
    error: data.ablation[`${kind}_error`],
    text: (value) => signed(value),
  });
}

// The label of a head if one of these scores is high.
const LABELS = {
  induction: "induction", duplicate_token: "duplicate", previous_token: "previous",
  own_position: "self", first_token: "first",
};
const HIGH = 0.3;

const HEAD = indexOfLargest(data.copies ? snapshots[LAST].scores.induction : data.ablation.zero);
/** The default text: short, so that its letters fit on the axes of a map and there is room to type;
 * of the validation texts, the first one with the most words. */
function openingText() {
  const length = Math.min(data.copies ? 40 : 32, Math.ceil(B * 0.75));
  if (!data.texts.length) return prompt;
  if (data.copies) return prompt.slice(0, length);
  const isBlank = vocab.map((token) => /^\s+$/.test(token));
  const stretches = data.texts.flatMap((ids) => range(Math.max(0, ids.length - length))
    .filter((start) => !isBlank[ids[start]] && (!start || isBlank[ids[start - 1]]))
    .map((start) => ids.slice(start, start + length)));
  const isWord = vocab.map((token) => (/^ ?\p{L}+$/u.test(token) ? 1 : 0));
  return stretches[indexOfLargest(stretches.map((ids) => sum(ids.map((id) => isWord[id]))))] ??
    prompt.slice(0, length);
}
const opening = openingText();
const shipped = () => ({ text: opening.map(known), snapshot: LAST, head: HEAD, edits: [],
  other: null, panel: null, stage: "weights" }); // or "scores", "masked"

const state = {
  ...shipped(), // other: the text that patches come from, or null for one made from the text
  measure: measures[0],
  hover: null, // {q, k} under the pointer; k is null if only a query is selected
  pin: null, // {q, k} that was clicked
  bar: null, // id of the token whose logit contributions are shown
  relative: false, // to the runner-up
  step: 0, // of the five
  opened: null, // panel to scroll to once it is shown
  seed: 1337, // of the continuation
};
let view; // {snapshot, start, tokens, other, pass, before, same, engine, edits}, from `update`

const UNIT = `nats/${data.run.unit}`;
const UNIFORM_GUESS = Math.log(V); // surprisal if all tokens are equally likely
const headName = (head) => `L${Math.floor(head / H)}H${head % H}`;
const place = (letter, t) => `${letter} ${t} ${quoted(view.tokens[t])}`;
// In the first step the text shows surprisal; in the others, attention from its last token.
const looking = () =>
  state.hover ?? state.pin ?? (state.step ? { q: view.pass.T - 1, k: null } : null);
const rowOf = (numbers, t) => numbers.subarray(t * V, (t + 1) * V);
const queryOnShow = () => Math.min(looking()?.q ?? Infinity, view.pass.T - 1);
const edited = () => view.before !== view.pass;

// -------------------------------------------------------------------------------------- header
const ABOUT = { repeat: "random strings, each repeated", pydocs: "Python's reference manual" };

function showHeader() {
  const { run, checks } = data;
  const source = [run.config.data.source].flat().join(", ");
  document.title = `${run.name} · glassgpt`;
  $("name").textContent = run.name;
  $("lead").textContent = `${L} layers of ${H} heads, ${count(run.parameters)} parameters`;
  $("source").textContent = "This page runs a language model that was trained on " +
    `${ABOUT[source] ?? source}. Type a text to see what each attention head attends to, what ` +
    "the model predicts next, and how both change when you edit the model.";
  $("result").textContent = `${L} layers x ${C} wide, ${H} heads, context ${B} · ` +
    `${count(run.parameters)} parameters · step ${count(run.step)} · loss on the whole ` +
    `validation split ${number(run.val_loss)} ${UNIT} · ${run.made} · PyTorch ${run.torch}`;

  $("config").append(el("pre", {}, JSON.stringify(run.config, null, 1)));
  const [passed, failed] = ["passed", "failed"].map((verdict) =>
    checks.filter((check) => check.verdict === verdict).length);
  const summary = $("checks").firstElementChild;
  summary.textContent = `${passed} of ${passed + failed} checks of the run passed`;
  summary.className = failed ? "failed" : "";
  $("checks").append(el("table", {},
    row(...["check", "dtype", "relative error", "tolerance", "verdict", "where"].map((name) =>
      header(name))),
    ...checks.map(({ name, dtype, error, tolerance, verdict, where }) => row(
      cell(name), cell(dtype), numeral(power(error)), numeral(power(tolerance)),
      el("td", { className: /^(passed|failed)$/.test(verdict) ? verdict : "" }, verdict),
      cell(el("code", {}, where))))));
  $("keys").append(...KEYS.map(([keys, action]) => row(cell(el("kbd", {}, keys)), cell(action))));
  const omitted = data.saved - snapshots.length;
  $("omitted").hidden = LAST > 0 && !omitted;
  $("omitted").textContent = omitted
    ? `${snapshots.length} of ${data.saved} snapshots are in this page.`
    : "This run has one snapshot. To see heads form, train with --train.snapshots.";
}

/** Show the difference from PyTorch; if it is too large, show nothing that the page computes. */
function showEquality({ error, allowed, agrees }) {
  const { eight_bits, rounding } = snapshots[state.snapshot];
  const unknown = unknownChoice(config);
  const reason = unknown ? `its engine does not support the model's ${unknown}`
    : `a logit differs by ${power(error)} from PyTorch's, more than the allowed ${power(allowed)}`;
  const about = tokensOf(data.reference.length);
  $("equality").textContent = agrees
    ? `The page matches PyTorch: the logits of ${about} are within ${power(error)} of ` +
      `PyTorch's (allowed: ${power(allowed)}). The weights are rounded to ` +
      `${eight_bits ? "8 bits" : "half precision"}, which changes a logit by at most ` +
      `${power(rounding.logit)}, and the loss by ${power(rounding.nats)} nats.`
    : `This page does not match PyTorch: ${reason}. Its results would be wrong, so none are shown.`;
  $("equality").className = agrees ? "quiet" : "trouble";
  $(agrees ? "proof" : "notices").append($("equality")); // a failure is visible without About
  document.body.classList.toggle("untrusted", !agrees);
}

// --------------------------------------------------------------------------------------- legends
function weightScale() {
  // The color scales with the square root of the weight, to distinguish small weights.
  const ticks = [0, 0.05, 0.25, 0.5, 1].map((weight) => [Math.sqrt(weight), `${weight}`]);
  return [scale(theme.weight, ticks), maskedSwatch(), el("p", {}, "attention weight")];
}

function scoreScale() {
  const limit = largestScore(), masked = state.stage === "masked";
  return [scoreBar(limit), ...(masked ? [maskedSwatch()] : []),
    el("p", {}, `q·k/√D ${masked ? "with later keys masked" : "before the mask"}`)];
}

function surpriseScale() {
  const ticks = [0, 0.5, 1].map((part) => [part, number(part * UNIFORM_GUESS, 1)]);
  return [scale(theme.surprise, ticks),
    el("p", {}, term("surprisal"), " in ", term("nat", "nats"), "; at the right, a uniform guess")];
}

function showLegends() {
  const [text, stage] = document.querySelectorAll(".legend");
  text.replaceChildren(...(looking() ? weightScale() : surpriseScale()));
  stage.replaceChildren(...(state.stage === "weights" ? weightScale() : scoreScale()));
}

// ------------------------------------------------------------------------------ rows of attention
const triangle = (q) => (q * (q + 1)) / 2;

const weightsOf = (head, q) => view.pass.attention[head].subarray(triangle(q), triangle(q + 1));

/** Return a function that tests whether k is masked for query q. */
function maskNow() {
  const hidden = new Set(state.edits.map(readEdit)
    .filter(({ kind }) => kind === "hide").map(({ position }) => position));
  return (q, k) => k > q || (k < q && hidden.has(k));
}

// q.k / sqrt(D) of every pair, including masked pairs: T * T numbers, cached for one head.
let scored = {};

function scoresOf(head) {
  if (scored.pass === view.pass && scored.head === head) return scored.scores;
  const { T, queries, keys } = view.pass;
  const [Q, K] = [queries, keys].map((each) => each[Math.floor(head / H)]);
  const ofHead = (rows, t) => rows.subarray(t * C + (head % H) * D, t * C + (head % H + 1) * D);
  const scores = Float32Array.from({ length: T * T }, (_, i) =>
    product(ofHead(Q, Math.floor(i / T)), ofHead(K, i % T)) / Math.sqrt(D));
  scored = { pass: view.pass, head, scores };
  return scores;
}

const largestScore = () => largestOf(scoresOf(state.head).map(Math.abs)) || 1;

/** Paint a head's map at a stage with one pixel per pair; masked pairs stay clear. */
function paintMap(canvas, head, stage) {
  const { T, attention } = view.pass, isMasked = stage === "scores" ? () => false : maskNow();
  const [scores, half] = stage === "weights" ? [] : [scoresOf(head), 127.5 / largestScore()];
  const colorAt = scores
    ? (q, k) => theme.score.pixels[Math.round(127.5 + half * scores[q * T + k])]
    : (q, k) => theme.weight.pixels[Math.round(255 * Math.sqrt(attention[head][triangle(q) + k]))];
  picture(canvas, T, T, (pixels) => {
    for (let i = 0; i < T * T; i++) {
      const [q, k] = [Math.floor(i / T), i % T];
      if (!isMasked(q, k)) pixels[i] = colorAt(q, k);
    }
  });
}

// ----------------------------------------------------------------------------- the grid of heads
const isOff = (word) => state.edits.includes(word);
const offWord = (head) => ["zero", "mean"].map((how) => `${headName(head)}=${how}`).find(isOff);

const isHeadOff = (head) => offWord(head) !== undefined || isOff(`L${Math.floor(head / H)}.attn`);

const thumbnails = range(HEADS).map((head) =>
  el("button", { type: "button", className: "pick", onclick: () => selectHead(head) },
    el("canvas"), el("span")));
const layers = range(L).map((l) => el("div", { className: "layer" }, el("b", {}, `L${l}`),
  ...["attn", "mlp"].map((part) => el("button",
    { type: "button", value: part, onclick: () => toggleEdit(`L${l}.${part}`) }, part))));

const valueOf = (head) => state.measure.at(view.snapshot)[head];

function labelOf(head) {
  const scores = snapshots[view.snapshot].scores;
  const best = Object.keys(LABELS).reduce((a, b) => (scores[b][head] > scores[a][head] ? b : a));
  return scores[best][head] >= HIGH ? LABELS[best] : "";
}

function showThumbnails() {
  const { T } = view.pass;
  thumbnails.forEach(({ firstChild: canvas }, head) => {
    canvas.className = T > 64 ? "fine" : "";
    paintMap(canvas, head, "weights");
  });
}

function showGrid() {
  const focused = document.activeElement.matches?.(".pick");
  thumbnails.forEach((pick, head) => {
    const value = state.measure.text(valueOf(head)), off = isHeadOff(head) ? ", ablated" : "";
    pick.lastChild.replaceChildren(el("b", {}, headName(head)), el("span", {}, value),
      el("i", { title: `a score of at least ${HIGH}` }, labelOf(head)));
    pick.ariaPressed = head === state.head;
    pick.ariaLabel = `layer ${Math.floor(head / H)} head ${head % H}, ` +
      `${state.measure.name} ${value} ${labelOf(head)}${off}`;
    pick.tabIndex = head === state.head ? 0 : -1; // arrow keys select the others
    pick.classList.toggle("off", Boolean(off));
  });
  if (focused) thumbnails[state.head].focus();
  layers.forEach((layer, l) => layer.querySelectorAll("button").forEach((button) => {
    const off = button.ariaPressed = isOff(`L${l}.${button.value}`);
    button.ariaLabel = `${off ? "restore" : "ablate"} layer ${l} ${button.value}`;
    button.title = `${button.ariaLabel}, always with zeros`;
  }));
}

function moveHead([across, down]) {
  const to = state.head + across + down * H;
  const leavesLayer = !down && Math.floor(to / H) !== Math.floor(state.head / H);
  if (to >= 0 && to < HEADS && !leavesLayer) selectHead(to);
}

// -------------------------------------------------------------------------- the selected head
const map = document.createElement("canvas"); // the map at one pixel a pair

function showHead() {
  const name = headName(state.head);
  const label = labelOf(state.head), off = offWord(state.head) !== undefined;
  $("map").classList.toggle("off", isHeadOff(state.head));
  $("head-title").textContent = `${name}${label && ` ${label}`}`;
  $("ablate").textContent = `${off ? "Restore" : "Ablate"} ${name}`;
  $("ablate").ariaPressed = off;
  $("ablate").disabled = isOff(`L${Math.floor(state.head / H)}.attn`);
  for (const button of document.querySelectorAll("[data-stage]")) {
    button.ariaPressed = button.dataset.stage === state.stage;
  }
  $("map").ariaLabel = `Attention map of ${name}; arrow keys move in it`;
  paintMap(map, state.head, state.stage);
  showLook();
}

function drawMap() {
  if (!view) return;
  const look = looking(), { T } = view.pass;
  const name = (t) => visible(view.tokens[t]);
  const options = { across: name, down: name, look: look && [look.k, look.q] };
  const context = drawCells($("map"), map, options);
  const { left, top, side } = $("map").dataset;
  if (view.same > 0 && document.activeElement === $("typed")) { // mark the unchanged rows
    context.fillStyle = theme.kept;
    context.fillRect(0, Number(top), 4, view.same * side);
  }
}

function inWords({ q, k }) {
  const weights = weightsOf(state.head, q);
  if (k === null) {
    const most = weights.indexOf(largestOf(weights));
    return `${place("q", q)} attends most to ${place("k", most)}: weight ${number(weights[most])}`;
  }
  const parts = [k > q ? "masked (a later key)"
    : maskNow()(q, k) ? "hidden" : `weight ${number(weights[k])}`];
  if (k <= q || state.stage === "scores") {
    parts.push(`attention score ${number(scoresOf(state.head)[q * view.pass.T + k])}`);
  }
  return `${place("q", q)} → ${place("k", k)}: ${parts.join(", ")}`;
}

function showLook() {
  const look = looking();
  drawMap();
  $("readout").textContent = look ? inWords(look) : "Point at a cell, or at a token of the text.";
  showStep();
  showLegends();
  showHiding();
  markLens();
}

// ------------------------------------------------------------------------------------ the text
let spans = []; // an element a token of the window

function buildText() {
  spans = view.tokens.map((token, t) => {
    const span = el("span", { role: "button", className: "token" }, visible(token));
    span.dataset.t = t;
    return span;
  });
  refill($("text"), svg("svg", { id: "arcs", "aria-hidden": "true" }), ...spans,
    ...state.text.slice(view.start + view.pass.T).map(unread));
}

const unread = ({ id, token }) =>
  el("span", { className: id === null ? "token unseen" : "token unread" }, visible(token));

function showTextState() {
  const unseen = state.text.find(({ id }) => id === null), { start, same, pass: { T } } = view;
  $("text-state").textContent = [
    unseen && `The model never saw ${quoted(unseen.token)} in training; ` +
      "it reads only the text before it.",
    start && `The model reads the last ${T} of ${start + T} tokens: whenever its context of ${B} ` +
      "is full, it drops the first half.",
    same > 0 && !start &&
      `The results for ${tokensOf(same)} did not change: later tokens do not affect earlier ones.`,
  ].filter(Boolean).join(" ");
}

function showText() {
  const look = looking(), { surprisal } = view.pass;
  const weights = look && weightsOf(state.head, look.q);
  const isMasked = maskNow(), here = queryOnShow();
  spans.forEach((span, t) => {
    const masked = look !== null && isMasked(look.q, t);
    span.classList.toggle("masked", masked);
    span.classList.toggle("here", t === here);
    span.classList.toggle("pinned", t === (state.pin?.k ?? state.pin?.q));
    span.classList.toggle("kept", t < view.same); // visible while one types
    if (masked) shade(span, theme.weight, NaN);
    else if (look) shade(span, theme.weight, Math.sqrt(weights[t]));
    else shade(span, theme.surprise, surprisal[t] / UNIFORM_GUESS);
    span.tabIndex = t === here ? 0 : -1;
    span.ariaLabel = `${t} ${visible(view.tokens[t])}, surprisal ${number(surprisal[t], 2)}`;
  });
  $("text-note").textContent = look
    ? `Color: attention of ${headName(state.head)} from ${place("token", look.q)}.`
    : "Color: surprisal. Point at a token of this line for attention; click to select it.";
  drawArcs();
  showNext();
}

/** Draw arcs from the selected query to what the head attends to, as wide as the weights. */
function drawArcs() {
  const arcs = $("arcs");
  if (!view || !arcs) return;
  const q = queryOnShow(), weights = looking() ? weightsOf(state.head, q) : [];
  const top = (t) => [spans[t].offsetLeft + spans[t].offsetWidth / 2, spans[t].offsetTop];
  const [x, y] = top(q);
  arcs.setAttribute("height", $("text").scrollHeight);
  arcs.replaceChildren(...ranked(weights, 8).filter((k) => weights[k] >= 0.02).map((k) => {
    const [to, up] = top(k), lift = Math.min(34, 12 + Math.abs(x - to) / 8);
    const loop = k === q ? 6 : 0; // to itself
    return svg("path", {
      d: `M${x + loop} ${y}C${x + 2 * loop} ${y - lift} ` +
        `${to - 2 * loop} ${up - lift} ${to - loop} ${up}`,
      "stroke-width": 1 + 5 * weights[k], opacity: 0.35 + 0.65 * weights[k],
    }, svg("title", {}, number(weights[k])));
  }));
}

/** The token to hide: the key of the selected cell, or the selected token; or null. */
function hideable() {
  const at = state.pin && (state.pin.k ?? state.pin.q);
  return at !== null && at < view.pass.T - 1 && !view.start ? at : null;
}

function showHiding() {
  const at = hideable(), button = $("hide-all");
  button.hidden = at === null;
  if (at === null) return;
  button.textContent = `${isOff(`hide@${at}`) ? "Show" : "Hide"} ${place("token", at)}`;
}

const BARS = 7;

function showNext() {
  const t = queryOnShow(), { T, logP, surprisal } = view.pass;
  const [now, before] = [view.pass, view.before].map((pass) => rowOf(pass.logP, t));
  const best = ranked(now, BARS);
  const next = view.pass.ids[t + 1];
  const gauge = (kind, logP) => {
    const bar = el("div", { className: kind });
    bar.style.width = `${100 * Math.exp(logP)}%`;
    return bar;
  };
  const rows = best.map((id, i) => {
    const token = visible(vocab[id]), tabIndex = i ? -1 : 0; // arrows do the rest
    const bar = el("button", { type: "button", className: "bar-button", onclick: () => vote(id),
      title: "logit contributions", ariaLabel: `logit contributions to ${token}`,
      ariaPressed: id === state.bar, tabIndex }, gauge("gauge", now[id]));
    if (edited()) bar.append(gauge("gauge ghost", before[id]));
    return el("tr", { className: id === next ? "came" : "" },
      cell(el("button", { type: "button", className: "write", title: "append",
        onclick: () => choose(id), tabIndex }, token)),
      numeral(number(Math.exp(now[id]))),
      ...(edited() ? [numeral(number(Math.exp(before[id])))] : []),
      cell(bar));
  });
  const own = surprisal[t], after = surprisal[t + 1];
  const heads = edited() ? [row(header(""), header("now"), header("before"), header(""))] : [];
  refill($("next"),
    el("table", {}, ...heads, ...rows),
    p(el("b", {}, `After ${place("token", t)}`), ". ", t + 1 < T
      ? `Came next: ${quoted(view.tokens[t + 1])}, probability ${number(Math.exp(-after))}. `
      : "This is the last token that the model reads. ", "The ", term("surprisal"),
    Number.isNaN(own) ? " of the first token is undefined."
      : ` of ${quoted(view.tokens[t])} was ${number(own)}.`));
  showVotes(t);
}

const hasBiases = data.shapes.some(([name]) => /(out|final_norm|head)\.bias$/.test(name));

/** Show what each part adds to a logit, or to its difference from the runner-up's. */
function showVotes(t) {
  $("votes").hidden = state.bar === null;
  $("writing").hidden = state.bar !== null;
  if (state.bar === null || !settled()) return;
  const rival = ranked(rowOf(view.pass.logP, t), 2).find((id) => id !== state.bar);
  const of = (id) => {
    const { embedding, heads, mlps, biases } = view.engine.votes(t, id);
    return [view.pass.logits[t * V + id], embedding, biases, ...heads, ...mlps];
  };
  const less = state.relative ? of(rival) : [];
  const parts = of(state.bar).map((part, i) => part - (less[i] ?? 0));
  const [logit, embedding, biases] = parts;
  const patched = logit - sum(parts.slice(1));
  const limit = largestOf(parts.slice(1).map(Math.abs)) || 1;
  const part = (value, head) => {
    const spot = numeral(head === undefined ? signed(value, 2) : el("button", { type: "button",
      title: `select ${headName(head)}`, onclick: () => selectHead(head) }, signed(value, 2)));
    shade(spot, theme.score, 0.5 + value / limit / 2);
    return spot;
  };
  const single = (name, value) => row(header(name, "row"), part(value));
  const isPatched = state.edits.some((word) => /^patch.*L\d+$/.test(word));
  const choice = el("input", { type: "checkbox", checked: state.relative, onchange: () => {
    state.relative = choice.checked;
    showNext();
  } });
  const names = (state.relative ? [state.bar, rival] : [state.bar])
    .map((id) => quoted(vocab[id])).join(" minus ");
  refill($("votes"),
    el("div", { className: "controls" }, el("b", {}, `Logit contributions to ${names}`),
      el("label", {}, choice, " minus runner-up"),
      el("button", { type: "button", onclick: () => vote(state.bar), ariaLabel: "Close" }, "×")),
    el("div", { className: "scroll" }, el("table", {},
      row(header(""), ...range(H).map((h) => header(`H${h}`)), header("MLP")),
      ...range(L).map((l) => row(header(`L${l}`, "row"),
        ...range(H).map((h) => part(parts[3 + l * H + h], l * H + h)),
        part(parts[3 + HEADS + l]))),
      single("embedding", embedding), ...(hasBiases ? [single("biases", biases)] : []),
      ...(isPatched ? [single("patched in", patched)] : []),
      row(header("sum", "row"), numeral(signed(logit, 2))))));
}

// ------------------------------------------------------------------------------------ training
function showMoment() {
  const { step, lens_loss } = snapshots[view.snapshot];
  const reached = MARKS.filter(({ at }) => at === view.snapshot)
    .flatMap(({ label }) => [" · ", term(label)]);
  refill($("moment"), term("step"), ` ${count(step)} · `, term("loss"),
    ` ${number(lens_loss[L])} ${UNIT} on ${count(data.sequences)} `, term("validation sequences"),
    edited() ? " without the edits" : `, ${number(view.pass.loss)} on this text`, ...reached);
  $("slider").ariaValueText = $("moment").textContent;
}

const MARKS = stagesOf(snapshots, data.baselines); // on the slider

function showLoss() {
  if (LAST === 0 || !view) return;
  const y = snapshots.map(({ lens_loss }) => lens_loss[L]);
  const title = `validation loss per snapshot, from ${number(y[0], 2)} to ${number(y[LAST], 2)}`;
  lineChart($("loss"), [{ y, kind: "", title }],
    { label: title, here: view.snapshot, dots: y, marks: MARKS });
}

function showFormation() {
  if (!view) return;
  const { measure, head } = state;
  $("formation").hidden = LAST === 0;
  $("formation-chart").hidden = Boolean(measure.error);
  $("formation-note").textContent = measure.error
    ? "Ablation is measured only at the last snapshot; choose another score."
    : `${measure.name} of each head at each snapshot; thick: ${headName(head)}; dashed: uniform ` +
      "attention. Click to go to a snapshot.";
  if (measure.error || LAST === 0) return;
  const others = range(HEADS).filter((other) => other !== head);
  const lines = [...others, head].map((each) => ({
    y: range(snapshots.length).map((i) => measure.at(i)[each]),
    kind: each === head ? "chosen" : "",
    title: headName(each),
  }));
  const label = `${measure.name} of every head over training`;
  lineChart($("formation-chart"), lines,
    { label, here: view.snapshot, choose: goTo, values: true, level: measure.uniform });
}

function showScores() {
  const { head, measure } = state;
  const withError = ({ at, error }) => `${signed(at(LAST)[head])} ± ${number(error[head], 4)}`;
  $("scores-title").textContent =
    `Scores of ${headName(head)} without edits${LAST ? ", and how they formed" : ""}`;
  const rows = measures.map((each) => el("tr", { className: each === measure ? "shown" : "" },
    cell(each.name, el("small", {}, `${each.formula} (${each.source})`)),
    numeral(each.error ? withError(each) : number(each.at(view.snapshot)[head])),
    numeral(each.error ? "" : number(each.uniform))));
  $("scores").replaceChildren(
    row(header("head score"), header("value"), header("uniform")), ...rows);
  const { period, first, second } = snapshots[view.snapshot].copying;
  $("copying").replaceChildren(`Copying: on random strings of ${count(period)} distinct tokens, ` +
    `each repeated, the loss is ${number(first)} ${UNIT} on the first copy and ${number(second)} ` +
    "on the second. An ", term("induction"), " score measures a pattern; copying is the behavior.");
}

// ---------------------------------------------------------------------------------------- edits
function showEdits() {
  const { edits } = state;
  $("edits").hidden = !edits.length;
  refill($("edit-list"), ...edits.map((word) => {
    const edit = readEdit(word);
    const says = inPlainWords(edit) + (hasEffect(edit, view) ? "" : ": not in this text");
    return el("button", { type: "button", className: "chip", title: "undo",
      ariaLabel: `undo: ${says}`, onclick: () => toggleEdit(word) }, `${says} ×`);
  }));
  const [now, before] = [view.pass.loss, view.before.loss];
  $("change").textContent =
    `this text: ${number(before)} → ${number(now)} (${signed(now - before, 3)})`;
}

// A patch needs a second text of the same length; the position must be in the window.
const fits = ({ start, other, pass: { T } }) =>
  !start && other.length === T && other.every(({ id }) => id !== null);

const hasEffect = ({ kind, position }, of) => position === undefined ||
  (!of.start && position < of.pass.T && (kind !== "patch" || fits(of)));

function inPlainWords({ kind, layer, head, position, instead }) {
  const where = head === undefined ? `layer ${layer}` : `L${layer}H${head}`;
  return {
    head: () => `${where} ${instead === "mean" ? "set to its mean" : "ablated"}`,
    attn: () => `attention of layer ${layer} ablated`,
    mlp: () => `MLP of layer ${layer} ablated`,
    hide: () => `token ${position} hidden from all heads`,
    patch: () => `${where} at token ${position} patched`,
  }[kind]();
}

// ------------------------------------------------------------------------------------ the lens
const LENS_CANDIDATES = 3;
let lens; // {logP of each layer}, of the view

const lensNames = ["embedding", ...range(L).map((l) => `after layer ${l}`)];

async function showLens(isCurrent) {
  const { T, ids } = view.pass;
  const logPs = [], cells = [];
  for (let layer = 0; layer <= L; layer++) {
    const logP = logProbabilities(view.engine.lens(layer));
    logPs.push(logP);
    cells.push(range(T).map((t) => {
      const best = indexOfLargest(rowOf(logP, t));
      const spot = el("td", { className: best === ids[t + 1] ? "came" : "" }, visible(vocab[best]));
      Object.assign(spot.dataset, { layer, t });
      spot.tabIndex = layer + t === 0 ? 0 : -1;
      return spot;
    }));
    if (!(await mayGoOn(isCurrent))) return false;
  }
  lens = { logPs, cells };
  const loss = snapshots[view.snapshot].lens_loss;
  const came = range(T).map((t) => header(t + 1 < T ? visible(view.tokens[t + 1]) : ""));
  $("lens").replaceChildren(
    el("thead", {}, row(header("read"), ...view.tokens.map((token) => header(visible(token))))),
    el("tbody", {}, ...lensNames.map((name, layer) =>
      row(header(`${name}, ${number(loss[layer], 2)} nats`, "row"), ...cells[layer]))),
    el("tfoot", {}, row(header("came next"), ...came)));
  $("lens-readout").textContent =
    `Point at a cell. Nats: mean loss on ${count(data.sequences)} validation sequences, no edits.`;
  paintLens();
  markLens();
  showColumn($("lens"), cells[0][queryOnShow()].offsetLeft);
  return true;
}

function paintLens() {
  lens?.cells.forEach((cells, layer) => cells.forEach((spot, t) =>
    shade(spot, theme.weight, Math.exp(largestOf(rowOf(lens.logPs[layer], t))))));
}

/** Scroll an element that is too wide for the screen so that `left` is in the middle. */
function showColumn(wide, left) {
  wide.parentElement.scrollLeft = left - wide.parentElement.clientWidth / 2;
}

function markLens() {
  const here = queryOnShow();
  lens?.cells.forEach((cells) =>
    cells.forEach((spot, t) => spot.classList.toggle("here", t === here)));
}

function readLens(spot) {
  if (!spot || !lens) return;
  const layer = Number(spot.dataset.layer), t = Number(spot.dataset.t);
  const logP = rowOf(lens.logPs[layer], t);
  const p = (id) => number(Math.exp(logP[id]));
  const best = ranked(logP, LENS_CANDIDATES).map((id) => `${quoted(vocab[id])} ${p(id)}`);
  const came = t + 1 < view.pass.T
    ? `came next: ${quoted(view.tokens[t + 1])} ${p(view.pass.ids[t + 1])}` : "the text ends here";
  $("lens-readout").textContent =
    `${lensNames[layer]}, ${place("token", t)}: ${best.join(", ")}; ${came}`;
}

// ------------------------------------------------------------------------------------- patching
const patches = { canvas: document.createElement("canvas"), shares: null, look: null, said: "" };

function showPatchState() {
  const { other, start, pass: { T, ids } } = view;
  const problem = other.some(({ id }) => id === null)
    ? "The second text has a token that the model never saw."
    : start ? `Both texts must fit into the context of ${B} tokens.`
      : other.length !== T
        ? `The texts have ${count(T)} and ${tokensOf(other.length)}, but must have the same length.`
        : other.every(({ id }, t) => id === ids[t])
          ? "The two texts are identical." : "";
  $("patch-state").textContent = problem || patches.said;
  if (document.activeElement !== $("other")) $("other").value = decode(other);
  return !problem;
}

function clearPatches() {
  Object.assign(patches, { shares: null, look: null, said: "" });
  $("patches").hidden = true;
  $("patch-readout").textContent = "";
}

const patchWord = (r, position) => (patches.byHead
  ? `patch@${position}/${headName(r)}` : `patch@${position}/L${r}`);

function drawPatches() {
  if (!patches.shares || !view) return;
  const { shares, byHead } = patches, T = view.pass.T;
  const rows = byHead ? HEADS : L;
  picture(patches.canvas, T, rows, (pixels) => shares.forEach((share, i) => {
    if (Number.isFinite(share)) {
      pixels[i] = theme.score.pixels[Math.round(255 * clamp(0.5 + share / 2, 0, 1))];
    }
  }));
  drawCells($("patches"), patches.canvas, {
    across: (t) => visible(view.tokens[t]),
    down: (r) => (byHead ? headName(r) : r ? `before layer ${r}` : "embedding"),
    tall: 1.4 * rem(), margin: (byHead ? 3 : 6) * rem(), look: patches.look,
  });
  $("patch-legend").replaceChildren(scoreBar(1));
  if (!patches.look) return;
  const [t, r] = patches.look;
  $("patch-readout").textContent = `${place("token", t)}, ` +
    `${byHead ? headName(r) : `what enters layer ${r}`}: ${number(shares[r * T + t])} of the ` +
    "difference restored. Click it or press Enter to patch it.";
}

// -------------------------------------------------------------------------------- the ablation
function showAblation() {
  $("ablation-note").textContent =
    `Change in validation loss (${number(data.ablation.loss)} ${UNIT} at step ` +
    `${count(snapshots[LAST].step)}) if one head's output is replaced by zero or by its mean, ` +
    `with the standard error over ${count(data.sequences)} sequences.`;
  const kinds = measures.filter((measure) => measure.error);
  const most = largestOf(kinds.flatMap(({ at }) => at(LAST).map(Math.abs))) || 1;
  const value = ({ at, error }, head) => {
    const spot = numeral(`${signed(at(LAST)[head])} ± ${number(error[head], 4)}`);
    shade(spot, theme.score, 0.5 + at(LAST)[head] / most / 2);
    return spot;
  };
  refill($("ablation"), row(header("head"), ...kinds.map(({ kind }) => header(kind))),
    ...ranked(kinds[0].at(LAST), HEADS).map((head) => {
      const pick = el("button", { type: "button", value: head, ariaPressed: head === state.head,
        onclick: () => selectHead(head) }, headName(head));
      return row(cell(pick), ...kinds.map((kind) => value(kind, head)));
    }));
}

PANELS.push(
  { key: "lens", title: "Logit lens", show: showLens },
  { key: "patch", title: "Patching",
    show: () => showPatchState() && !patches.shares && void fillPatches() },
  { key: "scores", title: "Head scores", show: () => (showScores(), showFormation()) },
  { key: "ablation", title: "Ablation", show: showAblation },
);

const listPanels = () => $("more").append(...PANELS.map(({ key, title }) => el("button",
  { type: "button", id: `show-${key}`, onclick: () => openPanel(state.panel === key ? null : key) },
  title)));

function showPanel(isCurrent) {
  for (const { key } of PANELS) {
    $(`show-${key}`).ariaExpanded = $(`show-${key}`).ariaPressed = key === state.panel;
    $(`${key}-section`).hidden = key !== state.panel;
  }
  return PANELS.find(({ key }) => key === state.panel)?.show(isCurrent);
}
