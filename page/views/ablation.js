// The panel of the loss change if a head is ablated, measured on the validation sequences.

import { selectHead } from "../actions.js";
import { largestOf, ranked } from "../engine/numbers.js";
import { ablations } from "../measures.js";
import { atStep, data, headName, HEADS, last, UNIT } from "../run.js";
import { state } from "../state.js";
import { shadeScore } from "./colors.js";
import { $, button, cell, header, numeral, refill, row } from "./elements.js";
import { count, number, signed } from "./format.js";

export function showAblation() {
  $("ablation-note").textContent =
    `Change in validation loss (${number(data.ablation.loss)} ${UNIT}${atStep}) if one head's output is replaced by zero or by its mean, ` +
    `with the standard error over ${count(data.sequences)} sequences.`;
  const most = largestOf(ablations.flatMap(({ at }) => at(last()).map(Math.abs))) || 1;
  const value = ({ at, error }, head) => shadeScore(
    numeral(`${signed(at(last())[head])} ± ${number(error[head], 4)}`), at(last())[head], most);
  refill($("ablation"), row(header("head"), ...ablations.map(({ kind }) => header(kind))),
    ...ranked(ablations[0].at(last()), HEADS).map((head) => {
      const isSelected = { value: head, ariaPressed: head === state.head };
      return row(cell(button(() => selectHead(head), isSelected, headName(head))),
        ...ablations.map((kind) => value(kind, head)));
    }));
}
