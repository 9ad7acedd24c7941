// What trains, as globals, for test_training.py.

import { Trainer } from "../../page/engine/trainer.js";
import { Learner } from "../../page/engine/backward.js";
import { Random } from "../../page/engine/random.js";
import { shapesOf } from "../../page/engine/shapes.js";
import { floatsOf } from "../../page/engine/weights.js";

Object.assign(globalThis, { floatsOf, Learner, Random, shapesOf, Trainer });
