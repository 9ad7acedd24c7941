// Numbers and tokens as text.

export const number = (value, digits = 3) =>
  (Number.isFinite(value) ? value.toFixed(digits).replace(/^-(0\.?0*)$/, "$1") : "–");
export const signed = (value, digits = 4) =>
  number(value, digits).replace(/^(?=\d)/, "+");
export const power = (value) => (Number.isFinite(value) ? value.toExponential(1) : "–");
export const percent = (value) => `${number(100 * value, 1)}%`;
export const count = (value) => value.toLocaleString("en");
export const tokensOf = (n) => `${count(n)} token${n === 1 ? "" : "s"}`;

// Make a token visible: spaces, control and combining characters are replaced.
export function visible(token) {
  const signs = { "\n": "↵", " ": "␣", "\t": "⇥", "\x7f": "␡" };
  const shown = Array.from(token, (char) => {
    if (Object.hasOwn(signs, char)) return signs[char];
    const code = char.codePointAt(0);
    if (code < 0x20) return String.fromCodePoint(0x2400 + code);
    if (!/[\p{C}\p{Z}]/u.test(char)) return char;
    return `U+${code.toString(16).toUpperCase().padStart(4, "0")}`;
  }).join("");
  return /^\p{M}/u.test(token) ? `◌${shown}` : shown;
}

export const quoted = (token) => `'${visible(token)}'`;
