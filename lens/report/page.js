// Events: computing again when something changes, the pointer and the keys, the address.

let turn = 0; // numbers the updates; an update stops when a newer one has begun

const settled = () => view?.turn === turn;
const position = () => Number($("slider").value); // ahead of `view` while that is computed
const settings = () => ({
  temperature: Number($("temperature").value),
  topK: Math.max(0, Math.trunc(Number($("top-k").value))),
  seed: state.seed,
});

// ------------------------------------------------------------------------------------ computing
const ofOther = (word) => word.startsWith("patch"); // needs the other text
const loaded = new Promise((resolve) => (document.readyState === "loading"
  ? addEventListener("DOMContentLoaded", resolve) : resolve()));

/** Compute what the state requires, and show it; stop if the state changes meanwhile. */
async function update() {
  const mine = ++turn;
  const isCurrent = () => mine === turn;
  document.body.dataset.busy = "yes";
  const { snapshot, edits } = state;
  const end = state.text.findIndex(({ id }) => id === null);
  const seen = end < 0 ? state.text : state.text.slice(0, end);
  document.body.classList.toggle("empty", !seen.length);
  if (!seen.length) return showNothing();
  if (snapshot !== LAST && !(await loaded.then(isCurrent))) return;
  const start = windowStart(seen.length - 1, B);
  const tokens = seen.slice(start).map(({ token }) => token);
  const ids = seen.slice(start).map(({ id }) => id);

  const plain = engineFor("plain", snapshot);
  if (!(await compute(plain, ids, [], isCurrent))) return;
  const before = passOf(plain);
  const other = state.other ?? (start ? seen : madeOther(before, seen));
  const now = { turn: mine, snapshot, start, tokens, other, before, pass: before, engine: plain };
  now.made = [snapshot, start, ...edits, edits.some(ofOther) && decode(other)].join(); // the inputs
  const words = edits.filter((word) => hasEffect(readEdit(word), now));
  now.edits = [];
  if (edits.length) {
    const patched = words.some(ofOther);
    const donor = patched ? engineFor("donor", snapshot) : null;
    if (patched && !(await compute(donor, other.map(({ id }) => id), [], isCurrent))) return;
    now.engine = engineFor("edited", snapshot);
    now.edits = toEngine(words, donor);
    if (!(await compute(now.engine, ids, now.edits, isCurrent))) return;
    now.pass = passOf(now.engine);
  }
  const was = view;
  view = now;
  view.same = was?.made === view.made ? sameTokens(was.pass.ids, ids) : 0;
  if (view.same === ids.length) view.same = 0; // nothing was typed
  const sameOther = was && decode(was.other) === decode(other);
  if (!sameOther || was.snapshot !== snapshot || was.pass.ids.join() !== ids.join()) clearPatches();
  for (const which of ["pin", "hover"]) {
    const { q = 0, k } = state[which] ?? {};
    if (Math.max(q, k ?? 0) >= ids.length) state[which] = null;
  }
  lens = undefined;
  showAhead([]);
  showAll();
  keepAddress();
  if ((await showPanel(isCurrent)) === false && !isCurrent()) return;
  if (state.opened) $(`${state.opened}-section`).scrollIntoView({ block: "nearest" });
  state.opened = null;
  if (state.step === STEPS.length - 1 && !(await measureHeads(isCurrent))) return;
  const verdict = await check(snapshot);
  if (!isCurrent()) return;
  showEquality(verdict);
  if (await goOn()) document.body.dataset.busy = "no";
}

function sameTokens(a, b) {
  const apart = b.findIndex((id, t) => id !== a[t]);
  return apart < 0 ? b.length : apart;
}

/** Show that there is no text, or none before a token that the model never saw. */
function showNothing() {
  view = undefined;
  showAhead([]);
  keepAddress();
  $("text-state").textContent = state.text.length
    ? `The model never saw ${quoted(state.text[0].token)} in training. It knows the tokens ` +
      `${vocab.slice(0, 200).map(visible).join(" ")}`
    : "The text is empty. Type something.";
  $("text").replaceChildren(...state.text.map(unread));
  document.body.dataset.busy = "no";
}

function showAll() {
  buildText();
  showTextState();
  for (const show of [showThumbnails, showGrid, showHead, showText]) show();
  for (const show of [showMoment, showEdits, showLoss]) show();
  document.body.dataset.snapshot = view.snapshot;
}

const AHEAD = 80; // tokens of the continuation
let ahead = []; // the continuation
let draws = 0;
let drawnFor; // the turn whose text it continues

function showAhead(tokens) {
  ahead = tokens;
  $("continuation").replaceChildren(...tokens.map(({ token }) =>
    el("span", { className: "token" }, visible(token))));
}

/** Sample the continuation; return false if it is no longer wanted. */
async function goOn() {
  const mine = ++draws;
  const isCurrent = () => mine === draws && drawnFor === turn;
  drawnFor = turn;
  const found = [];
  const ids = state.text.slice(0, view.start + view.pass.T).map(({ id }) => id);
  const engine = engineFor("ahead", view.snapshot);
  for (const drawn of generate(engine, ids, settings(), view.edits)) {
    if (!(await mayGoOn(isCurrent))) return false;
    if (!drawn) continue;
    found.push(known(drawn.id));
    showAhead(found);
    if (found.length === AHEAD) return true;
  }
}

/** Sample again after a change of the settings; an update in progress does so by itself. */
async function redraw() {
  if (drawnFor !== turn) return;
  document.body.dataset.busy = "yes";
  if (await goOn()) document.body.dataset.busy = "no";
}

// ---------------------------------------------------------------------------------- the actions
function setText(text) {
  state.text = text;
  state.pin = state.hover = null;
  update();
}

/** Append to the text that the model reads, before any token that it never saw. */
function write(tokens) {
  if (!settled() || !tokens.length) return;
  const end = view.start + view.pass.T;
  replaceText([...state.text.slice(0, end), ...tokens, ...state.text.slice(end)]);
}

/** Replace the text after the selected token with a bar's token. */
function choose(id) {
  if (!settled()) return;
  replaceText([...state.text.slice(0, view.start + queryOnShow() + 1), known(id)]);
}

/** Put a text into its field as if it were typed, so that Ctrl-Z undoes it. */
function replaceText(text) {
  const field = $("typed"), focused = document.activeElement;
  const [old, value] = [field.value, decode(text)];
  let same = 0;
  while (same < value.length && old[same] === value[same]) same++;
  field.focus({ preventScroll: true });
  field.setSelectionRange(same, old.length);
  const inserted = same < value.length
    ? document.execCommand("insertText", false, value.slice(same)) : document.execCommand("delete");
  if (!inserted || field.value !== value) field.value = value;
  if (focused !== document.body) focused.focus({ preventScroll: true });
  else field.blur();
  field.scrollTop = field.scrollHeight;
  setText(text);
}

function vote(id) {
  state.bar = state.bar === id ? null : id;
  showNext();
  if (state.panel === "circuit") showCircuit();
}

function selectHead(head) {
  if (!view) return;
  state.head = head;
  if (head < H) headChoice.value = head;
  for (const show of [showGrid, showHead, showText]) show();
  if (state.step === STEPS.length - 1) return update(); // measures it
  refreshPanel();
  keepAddress();
}

function toggleEdit(word) {
  state.edits = isOff(word)
    ? state.edits.filter((other) => other !== word) : [...state.edits, word];
  update();
}

const toggleHead = (head) => toggleEdit(offWord(head) ?? `${headName(head)}=${$("instead").value}`);

function undo() {
  state.edits = [];
  update();
}

/** Restore the initial state of the page, except for some changes; Reset keeps the text. */
function restart(changes = {}) {
  Object.assign(state, shipped(), { pin: null, hover: null, bar: null }, changes);
  $("slider").value = state.snapshot;
  if ($("typed").value !== decode(state.text)) $("typed").value = decode(state.text);
  $("instead").value = state.edits.map((word) => readEdit(word).instead).find(Boolean) ?? "zero";
  update();
}

const reset = () => restart({ text: state.text, panel: state.panel });

function goTo(index) {
  state.snapshot = clamp(index, 0, LAST);
  $("slider").value = state.snapshot;
  update();
}

let playing = null;

function play() {
  if (playing === null && position() === LAST) goTo(0);
  const on = () => (position() === LAST ? play() : goTo(position() + 1));
  clearInterval(playing);
  playing = playing !== null ? null
    : setInterval(() => document.body.dataset.snapshot === $("slider").value && on(),
      clamp(15_000 / LAST, 150, 700));
  $("play").textContent = playing === null ? "Play" : "Stop";
}

function pointAt(hover) {
  if (hover?.q === state.hover?.q && hover?.k === state.hover?.k) return;
  state.hover = hover;
  showLook();
  showText();
}

function pin(where) {
  const again = where && state.pin?.q === where.q && state.pin.k === where.k;
  state.pin = again ? null : where;
  state.hover = null;
  showLook();
  showText();
  if (state.panel === "circuit") showCircuit();
}

function hideSelected() {
  if (hideable() !== null) toggleEdit(`hide@${hideable()}`);
}

/** Show the open panel again, unless an update is in progress. */
function refreshPanel() {
  const mine = turn;
  if (settled()) showPanel(() => mine === turn);
}

function openPanel(key) {
  state.panel = state.opened = key;
  update();
}

function setStage(name) {
  state.stage = name;
  showHead();
}

// ------------------------------------------------------------------------------------- patching
/** The text with one token replaced by the most likely one that does not occur in it. */
function madeOther(pass, text) {
  const at = data.copies ? Math.floor(text.length / 2) : Math.max(0, text.length - 4);
  const old = text[at].id, present = new Set(text.map(({ id }) => id));
  const id = at ? ranked(rowOf(pass.logP, at - 1), V).find((each) => !present.has(each)) : null;
  return text.map((token, t) => (t === at ? known(id ?? old) : token));
}

let filling = 0;

/** Patch every cell from the other text, and measure the last prediction. */
async function fillPatches() {
  const mine = ++filling;
  delete document.body.dataset.filled;
  const { snapshot, other, pass: { T, ids } } = view;
  const byHead = $("by-head").checked;
  const isCurrent = () => mine === filling && patches.shares === shares;
  const otherIds = other.map(({ id }) => id);
  const first = sameTokens(otherIds, ids); // before it, the activations of both texts are the same
  const shares = range((byHead ? HEADS : L) * T).map((i) => (i % T < first ? 0 : NaN));
  Object.assign(patches, { shares, byHead, look: null });
  $("patches").hidden = false;
  const [donor, engine] = ["patch donor", "patch"].map((purpose) => engineFor(purpose, snapshot));
  const lastOf = ({ memory, at: { logits } }) => memory.slice(logits + (T - 1) * V, logits + T * V);
  if (!(await compute(donor, otherIds, [], isCurrent))) return;
  if (!(await compute(engine, ids, [], isCurrent))) return;
  const [logits, donated] = [engine, donor].map(lastOf);
  // The two predictions; if they are the same, the token whose logit rises most.
  const a = indexOfLargest(logits), same = indexOfLargest(donated) === a;
  const gains = donated.map((logit, v) => (v === a ? -Infinity : logit - logits[v]));
  const b = same ? indexOfLargest(gains) : indexOfLargest(donated);
  const difference = (of) => of[b] - of[a];
  const [low, high] = [difference(logits), difference(donated)];
  const says = [vocab[b], vocab[a]].map(quoted);
  patches.said = (same
    ? `The last prediction is ${says[1]} for both texts; the logit of ${says[0]} rises most. `
    : `The last prediction is ${says[1]} for the first text and ${says[0]} for the second. `) +
    `Logit of ${says[0]} minus logit of ${says[1]}: ${number(low, 2)} in the first text, ` +
    `${number(high, 2)} in the second.`;
  showPatchState();
  for (let r = 0; r < (byHead ? HEADS : L); r++) {
    for (let t = T - 1; t >= first; t--) {
      const word = patchWord(r, t);
      if (!(await compute(engine, ids, toEngine([word], donor), isCurrent))) return;
      shares[r * T + t] = (difference(lastOf(engine)) - low) / (high - low);
    }
    drawPatches();
    if (!r) showColumn($("patches"), ($("patches").clientWidth * first) / T);
  }
  document.body.dataset.filled = "yes";
}

function lookAtPatch(look) {
  if (!patches.shares) return;
  const rows = patches.byHead ? HEADS : L;
  patches.look = look && look[0] < view.pass.T && look[1] < rows ? look : null;
  drawPatches();
}

function applyPatch() {
  if (!patches.look || !settled()) return;
  state.other = view.other; // so that it no longer changes with the text
  toggleEdit(patchWord(patches.look[1], patches.look[0]));
}

/** Patch a cell that is already selected, as under a pointer that hovers. */
function clickPatch(event) {
  const [before, at] = [patches.look, cellUnder($("patches"), event)];
  lookAtPatch(at);
  if (patches.look && before?.join() === at.join()) applyPatch();
}

// ----------------------------------------------------------------------------------- the address
/** The part of the address after #: what differs from the initial state. */
function address() {
  const first = shipped(), parts = new URLSearchParams();
  if (decode(state.text) !== decode(first.text)) parts.set("text", toAddress(state.text));
  if (state.snapshot !== first.snapshot) parts.set("step", snapshots[state.snapshot].step);
  if (state.head !== first.head) parts.set("head", headName(state.head));
  for (const word of state.edits) parts.append("edit", word);
  if (state.other) parts.set("other", toAddress(state.other));
  if (state.panel) parts.set("panel", state.panel);
  return parts.size ? `#${parts}` : "";
}

let keeping; // browsers refuse an address that changes too often
let keptEdits = ""; // of the last address: Back undoes edits, and the first change

function keepAddress() {
  clearTimeout(keeping);
  keeping = setTimeout(() => {
    const edits = state.edits.join();
    const way = location.hash && edits === keptEdits ? "replaceState" : "pushState";
    keptEdits = edits;
    if (address() === location.hash) return;
    try {
      history[way](null, "", address() || location.pathname);
    } catch { // a frame without an address, as in a notebook
    }
  }, 300);
}

/** The changes that the address describes; anything invalid keeps its initial value. */
function readAddress() {
  const parts = new URLSearchParams(location.hash.slice(1)), changes = {};
  if (parts.has("text")) changes.text = fromAddress(parts.get("text"));
  if (parts.get("other")) changes.other = fromAddress(parts.get("other"));
  if (PANELS.some(({ key }) => key === parts.get("panel"))) changes.panel = parts.get("panel");
  const snapshot = snapshots.findIndex(({ step }) => `${step}` === parts.get("step"));
  if (snapshot >= 0) changes.snapshot = snapshot;
  const head = range(HEADS).find((each) => headName(each) === parts.get("head"));
  if (head !== undefined) changes.head = head;
  const ofHead = (word) => word.replace(/=.*/, ""); // one edit of a head
  changes.edits = parts.getAll("edit").filter((word, i, words) =>
    readEdit(word) && words.findIndex((each) => ofHead(each) === ofHead(word)) === i);
  return changes;
}

function explain(event) {
  const term = event.target.closest?.("[data-term]");
  if (!term) return;
  $("term").hidden = /out$/.test(event.type);
  if (event.type === "click") event.preventDefault(); // a label would move the focus
  $("term").textContent = GLOSSARY[term.dataset.term];
  const { left, bottom } = term.getBoundingClientRect();
  $("term").style.left = `${clamp(left, 8, Math.max(8, innerWidth - $("term").offsetWidth - 8))}px`;
  $("term").style.top = `${bottom + 4}px`;
}

// --------------------------------------------------------------------------- pointer and keys
function listen() {
  $("measure").append(...measures.map(({ key, name }) => el("option", { value: key }, name)));
  $("measure").onchange = () => {
    state.measure = measures[$("measure").selectedIndex];
    showGrid();
    refreshPanel();
  };
  for (const button of document.querySelectorAll("[data-stage]")) {
    button.onclick = () => setStage(button.dataset.stage);
  }
  $("slider").oninput = () => goTo(position());
  $("play").onclick = play;
  $("instead").onchange = () => {
    state.edits = state.edits.map((word) => word.replace(/=.*/, `=${$("instead").value}`));
    update();
  };
  $("help").onclick = () => $("about").showModal();
  $("ablate").onclick = () => toggleHead(state.head);
  $("default-text").onclick = () => replaceText(shipped().text);
  $("undo").onclick = undo;
  $("reset").onclick = reset;
  $("hide-all").onclick = hideSelected;
  $("write-one").onclick = () => write(ahead.slice(0, 1));
  $("another").onclick = () => {
    state.seed++;
    redraw();
  };
  $("temperature").oninput = $("top-k").oninput = redraw;
  $("by-head").onchange = () => patches.shares && fillPatches();

  $("typed").oninput = () => setText(encode($("typed").value));
  // A press on a button moves the focus; if this replaced the button, the click would be lost.
  for (const change of ["focus", "blur"]) $("typed").addEventListener(change, drawMap);
  $("other").oninput = () => {
    state.other = $("other").value ? encode($("other").value) : null;
    update();
  };
  const pairAt = (event) => {
    const [k, q] = cellUnder($("map"), event) ?? [Infinity, 0];
    return Math.max(q, k) < view.pass.T ? { q, k } : null;
  };
  Object.assign($("map"), {
    onpointermove: (event) => pointAt(pairAt(event)),
    onpointerleave: () => pointAt(null),
    onclick: (event) => pin(pairAt(event)),
    onkeydown: withArrows((_, across, down) => {
      const last = view.pass.T - 1;
      const { q, k } = looking() ?? { q: last, k: last };
      state.pin = null; // so that the cell at an edge stays selected
      pin({ q: clamp(q + down, 0, last), k: clamp((k ?? q) + across, 0, last) });
    }),
  });
  Object.assign($("patches"), {
    onpointermove: (event) => lookAtPatch(cellUnder($("patches"), event)),
    onclick: clickPatch,
    onkeyup: (event) => event.key === "Enter" && applyPatch(),
    onkeydown: withArrows((_, across, down) => {
      const [t, r] = patches.look ?? [view.pass.T - 1, 0];
      lookAtPatch([clamp(t + across, 0, view.pass.T - 1),
        clamp(r + down, 0, (patches.byHead ? HEADS : L) - 1)]);
    }),
  });

  $("next").onkeydown = withArrows((spot, across, down) => {
    const stops = [...$("next").querySelectorAll("button")];
    stops[clamp(stops.indexOf(spot) + across + 2 * down, 0, stops.length - 1)].focus();
  });
  const tokenAt = ({ target: { dataset } }) =>
    (dataset.t ? { q: Number(dataset.t), k: null } : null);
  Object.assign($("text"), {
    onpointerover: (event) => pointAt(tokenAt(event)),
    onpointerleave: () => pointAt(null),
    onclick: (event) => tokenAt(event) && pin(tokenAt(event)),
    onkeydown: withArrows((span, across, down) =>
      spans[clamp(Number(span.dataset.t) + across + down, 0, view.pass.T - 1)].focus()),
    onkeyup: (event) => "Enter ".includes(event.key) && pin(tokenAt(event)),
  });
  $("text").addEventListener("focusin", (event) =>
    event.target.matches(":focus-visible") && pointAt(tokenAt(event)));
  // Wait until the focus has moved, because drawing may replace its target.
  $("text").addEventListener("focusout", () => setTimeout(() =>
    $("text").contains(document.activeElement) || pointAt(null)));

  $("lens").onpointerover = (event) => readLens(event.target.closest("td"));
  $("lens").addEventListener("focusin", (event) => readLens(event.target.closest("td")));
  $("lens").onkeydown = withArrows((spot, across, down) => {
    if (!lens) return;
    const cells = lens.cells[clamp(Number(spot.dataset.layer) + down, 0, L)];
    const next = cells[clamp(Number(spot.dataset.t) + across, 0, view.pass.T - 1)];
    spot.tabIndex = -1;
    next.tabIndex = 0;
    next.focus();
  });

  for (const term of document.querySelectorAll("[data-term]")) term.tabIndex = 0;
  for (const type of ["pointerover", "pointerout", "focusin", "focusout", "click"]) {
    addEventListener(type, explain);
  }
  addEventListener("keydown", onKey);
  addEventListener("hashchange", () => restart(readAddress()));
  darkness.addEventListener("change", () => {
    theme = darkness.matches ? THEMES.dark : THEMES.light;
    if (!view) return;
    update();
    drawPatches();
  });
  const sizes = new ResizeObserver(() => {
    document.documentElement.style.setProperty("--bar", `${$("bar").offsetHeight}px`);
    for (const draw of [drawMap, drawArcs, showLoss, showFormation, drawPatches]) {
      requestAnimationFrame(draw); // not here: drawing changes sizes
    }
  });
  for (const id of ["map", "text", "bar", "panels"]) sizes.observe($(id));
}

const STAGES = ["scores", "masked", "weights"];
const KEYS = [
  ["← → ↑ ↓", "select another head; in the text, a map or a table, another token"],
  ["t", "type in the text; Esc leaves it", () => $("typed").focus()],
  ["Ctrl-Z", "undo typing and appended tokens"],
  ["1 … 5", "go to a step"],
  ["[", "previous snapshot", () => goTo(position() - 1)],
  ["]", "next snapshot", () => goTo(position() + 1)],
  ["p", "play or stop the training", () => LAST && play()],
  ["x", "ablate the selected head", () => toggleHead(state.head)],
  ["h", "hide the selected token from later ones", hideSelected],
  ["u", "undo all edits", undo],
  ["r", "reset: last step, no edits", reset],
  ["s", "scores, mask, softmax",
    () => setStage(STAGES[(STAGES.indexOf(state.stage) + 1) % STAGES.length])],
  ["Escape", "clear the selection", () => pin(null)],
  ["?", "show this list", () => $("about").showModal()],
];

function onKey(event) {
  if ((event.ctrlKey || event.metaKey) && event.key === "z" && !event.target.matches("textarea")) {
    event.preventDefault();
    $("typed").focus();
    document.execCommand("undo");
  }
  if (event.ctrlKey || event.metaKey || event.altKey || $("about").open) return;
  if (event.target.matches("textarea")) {
    if (event.key === "Escape") event.target.blur();
    return;
  }
  if (event.target.matches("select, input[type=number]")) return; // they use the keys themselves
  if (!view && !"rt?".includes(event.key)) return;
  const way = ARROWS[event.key];
  if (way && !event.target.matches("input[type=range]")) {
    // Up and down scroll the page, unless the heads are in view.
    const { top, bottom } = $("heads").getBoundingClientRect();
    if (way[1] && (bottom < 0 || top > innerHeight)) return;
    moveHead(way);
    event.preventDefault();
    return;
  }
  const step = Number(event.key) - 1;
  const act = STEPS[step] ? () => goToStep(step) : KEYS.find(([key]) => key === event.key)?.[2];
  if (!act) return;
  act();
  event.preventDefault();
}

// --------------------------------------------------------------------------------------- start
theme = darkness.matches ? THEMES.dark : THEMES.light;
$("slider").max = LAST;
$("heads").style.setProperty("--heads", H);
$("heads").style.setProperty("--layers", L);
$("heads").append(...layers.flatMap((layer, l) =>
  [layer, ...thumbnails.slice(l * H, (l + 1) * H)]));
$("text").classList.toggle("subwords", kind !== "char");
showHeader();
listSteps();
listPanels();
if (LAST === 0) $("bar").className = "still";
listen();
restart(readAddress());
