// What the colors of the text and of the map mean.

import { sizes, vocab } from "../run.js";
import { looking } from "../selection.js";
import { state } from "../state.js";
import { maskedSwatch, scale, scoreBar, theme } from "./colors.js";
import { p, term } from "./elements.js";
import { number, quoted } from "./format.js";
import { largestScore } from "./maps.js";

export const MOST_AHEAD = Math.log(10); // nats of the difference from n-grams at full color
export const UNIFORM_GUESS = Math.log(sizes.V); // surprisal if all tokens are equally likely

function weightScale(...says) {
  // The color scales with the square root of the weight, to distinguish small weights.
  const ticks = [0, 0.05, 0.25, 0.5, 1].map((weight) => [Math.sqrt(weight), `${weight}`]);
  return [scale(theme().weight, ticks), ...says];
}

function scoreScale() {
  const limit = largestScore(), masked = state.stage === "masked";
  return [scoreBar(limit), ...(masked ? [maskedSwatch()] : []),
    p(`q·k/√D ${masked ? "with later keys masked" : "before the mask"}`)];
}

function surpriseScale() {
  const [half, full] = [UNIFORM_GUESS / 2, UNIFORM_GUESS].map((nats) => number(nats, 1));
  return [scale(theme().surprise, [[0, "0"], [0.5, half], [1, `≥ ${full}`]]),
    p(term("surprisal"), " in ", term("nat", "nats"), `; a uniform guess has ${full}`)];
}

function aheadScale() {
  const ticks = [[0, "≥ 10×"], [0.5, "equal"], [1, "≥ 10×"]];
  return [scale(theme().ahead, ticks), p("Blue: the model gave the token a higher probability ",
    "than ", term("n-grams"), ". Red: n-grams gave it a higher one.")];
}

export function showLegends() {
  const [text, stage] = document.querySelectorAll(".legend");
  const weights = () => weightScale(maskedSwatch(), p("attention weight"));
  text.replaceChildren(...({ ngrams: aheadScale, probability: () =>
    weightScale(p(`probability of ${quoted(vocab[state.token])} after the token`)),
  }[state.color] ?? (looking() ? weights : surpriseScale))());
  stage.replaceChildren(...(state.stage === "weights" ? weights() : scoreScale()));
}
