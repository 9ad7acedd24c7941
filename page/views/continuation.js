// The continuation of the text, and how it is sampled.

import { tokenizer } from "../run.js";
import { change, state } from "../state.js";
import { $, el } from "./elements.js";
import { visible } from "./format.js";
import { write } from "./typing.js";

export function showAhead() {
  const { ahead, sampling: { wrong } } = state;
  $("continuation").replaceChildren(...(wrong ? [wrong] : ahead.flatMap(({ token }) =>
    [el("span", { className: "token" }, visible(token)), tokenizer.gap])));
}

const fields = ["temperature", "top-k"].map($);

/** Sample as the fields say. */
function readFields() {
  const wrong = fields.find(({ validity: { rangeUnderflow, rangeOverflow } }) =>
    rangeUnderflow || rangeOverflow);
  const [temperature, topK] = fields.map(({ value }) => Number(value));
  change({ sampling: wrong ? { wrong: `${wrong.id}: ${wrong.validationMessage}` }
    : { temperature, topK: Math.max(0, Math.trunc(topK)) } });
}

$("write-one").onclick = () => write(state.ahead.slice(0, 1));
$("another").onclick = () => change({ seed: state.seed + 1 });
for (const field of fields) field.oninput = readFields;
readFields();
