// The n-grams of the training text, if the page was made with --with_text.

import { NgramModel } from "./engine/ngrams.js";
import { mayGoOn } from "./engine/pass.js";
import { bytesOf } from "./engine/weights.js";
import { data, sizes } from "./run.js";
import { change, state } from "./state.js";

export const ARRAYS = { 1: Uint8Array, 2: Uint16Array, 4: Uint32Array };
let begun = !data.text;

/** Count the n-grams once, while the browser handles events; call it when the page is drawn. */
export async function openNgrams() {
  if (begun) return;
  begun = true;
  const { deflated, bytes_per_token: width, order } = data.text;
  const bytes = new Blob([bytesOf(deflated)]).stream()
    .pipeThrough(new DecompressionStream("deflate"));
  const tokens = new ARRAYS[width](await new Response(bytes).arrayBuffer());
  const ngrams = new NgramModel(tokens, sizes.V, order);
  for (const _ of ngrams.build()) await mayGoOn(() => true);
  change({ ngrams });
}

/** Whether the colors of the text compare the model with n-grams. */
export const comparing = () => state.color === "ngrams";

/** How much less surprising each token was to the model than to n-grams, in nats; or undefined. */
export function advantage() {
  const { ids, surprisal } = state.view.pass;
  return state.ngrams?.read(ids).map((nats, t) => nats - surprisal[t]);
}
