// The engine's exports as globals, for the tests.

import { Circuit, logitGoal, scoreGoal } from "../../page/engine/circuit.js";
import { Counting } from "../../page/engine/ngrams.js";
import { CHOICES, Engine, windowStart } from "../../page/engine/engine.js";
import { arena } from "../../page/engine/kernels.js";
import { Layer0 } from "../../page/engine/layer0.js";
import { Measure } from "../../page/engine/measure.js";
import { stagesOf } from "../../page/engine/stages.js";
import { TASKS } from "../../page/engine/tasks.js";
import { floatsOf } from "../../page/engine/weights.js";

Object.assign(globalThis, {
  arena, CHOICES, Circuit, Counting, Engine, floatsOf, Layer0, logitGoal, Measure, scoreGoal,
  stagesOf, TASKS, windowStart,
});
