// The tasks and what is measured on them, as globals, for test_task_sequences.py and test_measure.py.

import { Measure } from "../../page/engine/measure.js";
import { TASKS } from "../../page/engine/tasks.js";
import { floatsOf } from "../../page/engine/weights.js";

Object.assign(globalThis, { floatsOf, Measure, TASKS });
