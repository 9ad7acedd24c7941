// What trains, as globals, for test_training.py.

import { Learner } from "../../page/engine/backward.js";
import { initialize, shapesOf } from "../../page/engine/shapes.js";
import { floatsOf } from "../../page/engine/weights.js";

Object.assign(globalThis, { floatsOf, initialize, Learner, shapesOf });
