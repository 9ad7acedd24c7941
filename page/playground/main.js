// The playground: the page of a model that trains in it. A worker runs the first part of the script.

import "../engine/trainer.js";
import "../views/trouble.js";
import { kept } from "./setting.js";
import { start } from "../start.js";
import { change, state } from "../state.js";
import { refreshPanel } from "../update.js";
import { BIG } from "../views/big.js";
import { PANELS } from "../views/panels.js";
import { showFormation } from "../views/scores.js";
import { showCompared, showLosses } from "./compare.js";
import { goOn, showMomentOf, showTraining } from "./form.js";

PANELS.push({ key: "compare", title: "A and B", show: showCompared });
BIG.compare = { name: "A and B", focus: "#big", panel: "compare", isThere: () => state.kept?.steps };
change({ kept });
start({
  view: [showMomentOf, showLosses, showTraining],
  newest: [showLosses, showMomentOf, showFormation],
  training: [showTraining],
  stopped: [showTraining],
  kept: [showTraining, showLosses, refreshPanel],
  size: [showLosses],
});
goOn();
