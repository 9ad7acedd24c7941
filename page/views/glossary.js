// What the page's terms mean, and exact numbers, under the pointer or the focus.

import { clamp } from "../engine/numbers.js";
import { $ } from "./elements.js";

const GLOSSARY = {
  token: "what the model reads and writes one at a time: a character, a byte or a subword",
  head: "a part of a layer that moves information to each token from itself and earlier tokens",
  ablate: "replace the output of a head with zeros, or with its mean on the validation sequences",
  query: "the vector of the token that attends; it is compared with the keys of all tokens so far",
  key: "the vector of a token that is attended to; a large q·k means a large weight",
  value: "the vector that a head takes from a token, in proportion to its weight",
  "residual stream": "the vector at a token's position that every head and MLP adds to",
  norm: "subtracts a vector's mean, scales it to a standard deviation of 1, and multiplies each " +
    "number by a weight",
  logit: "the number for a possible next token that the softmax turns into its probability",
  nat: "the unit of surprisal: −ln of a probability; 0.69 nats are one bit",
  surprisal: "how unlikely a token was to the model, in nats",
  step: "the number of batches trained on; the slider has a dot for each snapshot, not each step",
  loss: "the mean surprisal of a text",
  "validation sequences": "texts, as long as the context, that the model was not trained on",
  "logit lens": "the output layer applied to an earlier residual stream (nostalgebraist 2020)",
  patching: "replacing an activation with the activation from another text",
  induction: "attending to the token after the previous occurrence of the current token",
  accuracy: "the fraction of the tokens determined by their context that are predicted",
  "below uniform": "first snapshot with a loss below that of a uniform guess",
  "below n-gram": "first snapshot with a loss below that of counting what follows n − 1 tokens",
  "below in-context n-gram": "first snapshot with a loss below that of counting within the sequence",
  "below chance": "first snapshot with a loss below that of each token's frequency at its position",
  "head on the match": "first snapshot in which a head has a score of at least 0.3 for it",
  "best step": "the step with the lowest loss on the validation split; the page opens with its weights",
  temperature: "divides the logits: below 1 favors likely tokens, 0 selects the most likely one",
  "top-k": "sample only from the k most likely tokens",
};

function explain(event) {
  const term = event.target.closest?.("[data-term], [data-says]");
  $("term").hidden = !term || /out$/.test(event.type);
  if (!term) return;
  if (event.type === "click") event.preventDefault(); // a label would move the focus
  const { says, term: named } = term.dataset;
  const name = named?.replace(/(below( in-context)?) .*gram$/, "$1 n-gram")
    .replace(/^.+ head$/, "head on the match");
  $("term").textContent = says ?? GLOSSARY[name];
  const { left, bottom } = term.getBoundingClientRect();
  $("term").style.left = `${clamp(left, 8, Math.max(8, innerWidth - $("term").offsetWidth - 8))}px`;
  $("term").style.top = `${bottom + 4}px`;
}

for (const type of ["pointerover", "pointerout", "focusin", "focusout", "click"]) {
  addEventListener(type, explain);
}
