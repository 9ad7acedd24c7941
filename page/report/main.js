// The report of a run.

import "../views/trouble.js";
import { last } from "../run.js";
import { start } from "../start.js";
import { LATER } from "../update.js";
import { BIG } from "../views/big.js";
import { $ } from "../views/elements.js";
import { PANELS } from "../views/panels.js";
import { showLoss, showMoment } from "../views/training.js";
import { check, showChecks, showEquality } from "./check.js";
import { showExamples } from "./examples.js";

PANELS.splice(3, 0, { key: "examples", title: "Head examples", show: showExamples });
LATER.splice(2, 0, check);
if (last() === 0) {
  $("bar").className = "still";
  delete BIG.bar;
}
start({
  view: [showMoment, showLoss],
  verdict: [showEquality],
  size: [showLoss],
});
showChecks();
