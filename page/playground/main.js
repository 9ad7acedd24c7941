// The playground: the page of a model that trains in it. A worker runs the first part of the script.

import "../engine/trainer.js";
import "../views/trouble.js";
import { kept } from "./setting.js";
import { start } from "../start.js";
import { change } from "../state.js";
import { refreshPanel } from "../update.js";
import { BIG } from "../views/big.js";
import { PANELS } from "../views/panels.js";
import { showFormation } from "../views/scores.js";
import { showCompared, showLoss } from "./compare.js";
import { showMoment, showTraining } from "./form.js";

PANELS.push({ key: "compare", title: "A and B", show: showCompared });
BIG.compare = { name: "A and B", focus: "#big", panel: "compare" };
change({ kept });
start({
  view: [showMoment, showLoss, showTraining],
  newest: [showLoss, showMoment, showFormation],
  training: [showTraining],
  stopped: [showTraining],
  kept: [showTraining, showLoss, refreshPanel],
  size: [showLoss],
});
