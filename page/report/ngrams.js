// What n-grams of the training text predict, if the page was made with --with_text: the section about
// a token, and what the continuation copies.

import { data } from "../data.js";
import { DEPTH, NgramModel } from "../engine/ngrams.js";
import { range, ranked } from "../engine/numbers.js";
import { mayGoOn } from "../engine/pass.js";
import { bytesOf } from "../engine/weights.js";
import { rowOf, sizes, tokenizer, vocab } from "../run.js";
import { place } from "../selection.js";
import { change, state } from "../state.js";
import { AHEAD } from "../update.js";
import { $, cell, el, gauge, header, numeral, p, refill, row } from "../views/elements.js";
import { count, number, tokensOf, visible } from "../views/format.js";

const SHOWN = 5; // tokens
const PASSAGES = 3, TRIED = 12; // places for them
const COPIED = 20; // characters of the shortest stretch that is underlined
const WIDTH = 30; // characters of a passage before a place, and after it

export const ARRAYS = { 1: Uint8Array, 2: Uint16Array, 4: Uint32Array };
let begun = !data.text;

/** Count the n-grams once, while the browser handles events; call it when the page is drawn. */
export async function openNgrams() {
  if (begun) return;
  begun = true;
  const { deflated, bytes_per_token: width, order } = data.text;
  const bytes = new Blob([bytesOf(deflated)]).stream()
    .pipeThrough(new DecompressionStream("deflate"));
  const tokens = new ARRAYS[width](await new Response(bytes).arrayBuffer());
  const ngrams = new NgramModel(tokens, sizes.V, order);
  for (const _ of ngrams.build()) await mayGoOn(() => true);
  change({ ngrams });
}

const decode = (ids) => tokenizer.decode(Array.from(ids, (id) => tokenizer.known(id)));
const inLine = (text) => visible(text).replaceAll("␣", " ");

/** Show how the selected token was predicted, or else what comes next. */
export function showNgrams() {
  $("ngrams-section").hidden = state.color !== "ngrams";
  if (state.color !== "ngrams") return;
  const { ngrams, hover, pin, view } = state, t = (hover ?? pin)?.q ?? view.pass.T;
  refill($("ngrams"), ...(ngrams && t ? prediction(t) : [p(ngrams
    ? `${place("Token", 0)} is the first: the model does not predict it.`
    : "Counting the training text …")]));
}

function prediction(t) {
  const { ngrams, view: { pass: { ids, T, logP } } } = state, id = ids[t];
  const model = rowOf(logP, t - 1).map(Math.exp), counted = ngrams.predict(ids, t);
  const { length, places, next } = ngrams.longest(ids, t);
  const likely = ranked(model.map((probability, v) => Math.max(probability, counted[v])), SHOWN);
  const context = t < T ? `${tokensOf(length)} before it` : `last ${tokensOf(length)}`;
  const times = places.length > 1 ? `${count(places.length)} times` : "once";
  const passages = new Map(range(TRIED) // the distinct ones
    .map((i) => passage(places[Math.floor((i * places.length) / TRIED)], length))
    .map((line) => [line.textContent, line]));
  return [
    p(...(t < T ? [el("b", {}, place("Token", t)), `: ${compared(model[id], counted[id])}`]
      : [el("b", {}, "After the text"), ". Select a token to see how it was predicted."])),
    p(length ? `The training text has the ${context} ${times}` +
      `${length < DEPTH ? ", and no longer context" : ""}. Then came:`
      : "The token before does not occur in the training text, which has:"),
    el("table", {},
      row(...["", "times", "n-grams", "model", ""].map((name) => header(name))),
      ...likely.map((v) => el("tr", { className: v === id ? "came" : "" },
        cell(el("code", {}, visible(vocab[v]))),
        numeral(count(next.find((each) => each.id === v)?.count ?? 0)),
        numeral(number(counted[v])), numeral(number(model[v])),
        cell(gauge("counted", counted[v]), gauge("", model[v]))))),
    ...(length ? [...passages.values()].slice(0, PASSAGES) : []),
  ];
}

function compared(model, counted) {
  const times = Math.max(model / counted, counted / model);
  const who = model > counted ? "the model" : "n-grams";
  const more = times > 100 ? "over 100" : number(times, 1);
  return `probability ${number(model)} by the model, ${number(counted)} by n-grams` +
    (times < 1.1 ? "." : `: ${more} times as much by ${who}.`);
}

/** Where the training text has the last tokens. */
function passage(at, length) {
  const { tokens } = state.ngrams;
  const part = (from, to) => Array.from(inLine(decode(tokens.subarray(Math.max(0, from), to))));
  const match = part(at - length, at).slice(-WIDTH);
  const before = match.length < WIDTH ? part(at - length - WIDTH, at - length) : [];
  return el("p", { className: "passage" },
    before.slice(match.length - WIDTH).join("").padStart(WIDTH - match.length),
    el("b", {}, match.join("")), part(at, at + WIDTH).slice(0, WIDTH).join(""));
}

/** Underline what the whole continuation copies from the training text. */
export function showCopied() {
  const { ahead, ngrams } = state, ids = ahead.map(({ id }) => id);
  if (ids.length < AHEAD || !ngrams) return;
  $("copied-note").hidden = false;
  const spans = [...$("continuation").children];
  for (let t = 1; t <= ids.length; t++) {
    const first = t + 1 - ngrams.ranges(ids, t).length;
    if (Array.from(decode(ids.slice(first, t))).length < COPIED) continue;
    for (const span of spans.slice(first, t)) span.classList.add("copied");
  }
}

if (data.text) $("color").options[0].after(new Option("model against n-grams", "ngrams"));
if (data.text?.notice) {
  const [says, link] = data.text.notice.split(/(?=https:)/);
  $("notice").append(says, el("a", { href: link }, link));
}
