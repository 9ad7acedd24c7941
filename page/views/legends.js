// What the colors of the text and of the map mean.

import { comparing } from "../ngrams.js";
import { sizes } from "../run.js";
import { looking } from "../selection.js";
import { state } from "../state.js";
import { maskedSwatch, scale, scoreBar, theme } from "./colors.js";
import { p, term } from "./elements.js";
import { number } from "./format.js";
import { largestScore } from "./maps.js";

export const MOST_AHEAD = Math.log(10); // nats of the difference from n-grams at full color
export const UNIFORM_GUESS = Math.log(sizes.V); // surprisal if all tokens are equally likely

function weightScale() {
  // The color scales with the square root of the weight, to distinguish small weights.
  const ticks = [0, 0.05, 0.25, 0.5, 1].map((weight) => [Math.sqrt(weight), `${weight}`]);
  return [scale(theme().weight, ticks), maskedSwatch(), p("attention weight")];
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
  const scaleOf = comparing() ? aheadScale : looking() ? weightScale : surpriseScale;
  text.replaceChildren(...scaleOf());
  stage.replaceChildren(...(state.stage === "weights" ? weightScale() : scoreScale()));
}
