// The playground: the page of a model that trains in it. A worker runs the first part of the script.
// A panel of compare.js can be named in the address, which main.js reads.

import "./engine/trainer.js";
import "./views/trouble.js";
import "./setting.js";
import "./views/compare.js";
import "./main.js";
import "./views/playground.js";
