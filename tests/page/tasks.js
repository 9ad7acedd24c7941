// The tasks, as a global, for test_task_sequences.py.

import { TASKS } from "../../page/engine/tasks.js";

Object.assign(globalThis, { TASKS });
