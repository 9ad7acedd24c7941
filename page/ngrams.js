// The training text in this page, if it was made with --with_text, and its index.

import { Counting } from "./engine/ngrams.js";
import { mayGoOn } from "./engine/pass.js";
import { bytesOf } from "./engine/weights.js";
import { data, sizes } from "./run.js";
import { change, state } from "./state.js";

export const CAN_COUNT = "DecompressionStream" in globalThis;
const ARRAYS = { 1: Uint8Array, 2: Uint16Array, 4: Uint32Array };
let begun = !data.text || !CAN_COUNT;

/** Make the index once, while the browser handles events; call it when the page is drawn. */
export async function countText() {
  if (begun) return;
  begun = true;
  const { deflated, bytes_per_token: width, order } = data.text;
  const bytes = new Blob([bytesOf(deflated)]).stream()
    .pipeThrough(new DecompressionStream("deflate"));
  const tokens = new ARRAYS[width](await new Response(bytes).arrayBuffer());
  const counting = new Counting(tokens, sizes.V, order);
  for (const _ of counting.build()) await mayGoOn(() => true);
  change({ counting });
}

/** Whether the colors of the text compare the model with counting. */
export const comparing = () => state.color === "counting";

/** How much less surprising each token was to the model than to counting, in nats; or undefined. */
export function advantage() {
  const { ids, surprisal } = state.view.pass;
  return state.counting?.read(ids).map((nats, t) => nats - surprisal[t]);
}
