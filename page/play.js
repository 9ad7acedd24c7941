// The playground: the page of a model that trains in it. A worker runs the first part of the script.

import "./engine/trainer.js";
import "./views/trouble.js";
import "./setting.js";
import "./main.js";
import "./views/playground.js";
