// What computes in the page, as globals, for the tests. trainer.js comes first: see playground/main.js.

import { Trainer } from "../../page/engine/trainer.js";
import { Alone } from "../../page/engine/alone.js";
import { Learner } from "../../page/engine/backward.js";
import { Circuit, logitGoal, scoreGoal } from "../../page/engine/circuit.js";
import { Engine, windowStart } from "../../page/engine/engine.js";
import { arena } from "../../page/engine/kernels.js";
import { Measure } from "../../page/engine/measure.js";
import { inductionOn } from "../../page/engine/pass.js";
import { Random } from "../../page/engine/random.js";
import { generate } from "../../page/engine/sampling.js";
import { initialize, shapesOf } from "../../page/engine/shapes.js";
import { stagesOf } from "../../page/engine/stages.js";
import { TASKS } from "../../page/engine/tasks.js";
import { Tokenizer } from "../../page/engine/tokenizer.js";
import { floatsOf } from "../../page/engine/weights.js";
import { number, signed } from "../../page/views/format.js";

Object.assign(globalThis, {
  Alone, arena, Circuit, Engine, floatsOf, generate, inductionOn, initialize, Learner,
  logitGoal, Measure, number, Random, scoreGoal, shapesOf, signed, stagesOf, TASKS,
  Tokenizer, Trainer, windowStart,
});
