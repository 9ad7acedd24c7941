// The text field.

import { tokenizer } from "../run.js";
import { queryOnShow, textOnShow } from "../selection.js";
import { change, initial, settled, state } from "../state.js";
import { $ } from "./elements.js";

const setText = (text) => change({ text, pin: null, hover: null });

/** Show a text in the field; Ctrl-Z does not undo it. */
export function fillField(text) {
  const value = tokenizer.decode(text);
  if ($("typed").value !== value) $("typed").value = value;
}

/** Put a text into the field as if it were typed, so that Ctrl-Z undoes it. */
function replaceText(text) {
  const field = $("typed"), focused = document.activeElement;
  const [old, value] = [field.value, tokenizer.decode(text)];
  let same = 0;
  while (same < value.length && old[same] === value[same]) same++;
  field.focus({ preventScroll: true });
  field.setSelectionRange(same, old.length);
  const inserted = same < value.length
    ? document.execCommand("insertText", false, value.slice(same)) : document.execCommand("delete");
  if (!inserted || field.value !== value) field.value = value;
  if (focused !== document.body) focused.focus({ preventScroll: true });
  else field.blur();
  field.scrollTop = field.scrollHeight;
  setText(text);
}

/** Append to the text on show. */
export function write(tokens) {
  if (settled() && tokens.length) replaceText([...textOnShow(), ...tokens]);
}

/** Replace the text after the selected token with one token. */
export function choose(id) {
  if (!settled()) return;
  const text = textOnShow();
  let left = state.view.start + queryOnShow() + 1; // tokens that the model reads
  const end = text.findIndex((token) => token.id !== null && --left === 0);
  replaceText([...text.slice(0, end + 1), tokenizer.known(id)]);
}

$("typed").oninput = () => setText(tokenizer.encode($("typed").value));
$("default-text").onclick = () => replaceText(initial().text);
