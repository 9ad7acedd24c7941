// What the colors of the text and of the map mean.

import { sizes, vocab } from "../run.js";
import { looking } from "../selection.js";
import { state } from "../state.js";
import { maskedSwatch, scale, scoreBar, theme } from "./colors.js";
import { p, term } from "./elements.js";
import { number, quoted } from "./format.js";
import { largestScore } from "./maps.js";

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

export function showLegends() {
  const [text, stage] = document.querySelectorAll(".legend");
  const weights = () => weightScale(maskedSwatch(), p("attention weight"));
  const chances = () => weightScale(p(`probability of ${quoted(vocab[state.token])} after the token`));
  text.replaceChildren(...(state.color === "probability" ? chances
    : looking() ? weights : surpriseScale)());
  stage.replaceChildren(...(state.stage === "weights" ? weights() : scoreScale()));
}
