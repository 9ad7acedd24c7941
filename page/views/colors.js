// Colors, in the light and the dark scheme.

import { clamp, range } from "../engine/numbers.js";
import { el } from "./elements.js";
import { number } from "./format.js";

// 256 colors through the anchors: as pixels of an image, as CSS, and for each the ink, black or
// white, with the higher contrast, which is at least 4.5.
function ramp(...anchors) {
  const stops = anchors.map((a) => [1, 3, 5].map((i) => parseInt(a.slice(i, i + 2), 16)));
  const colors = { pixels: new Uint32Array(256), css: [], ink: [] };
  for (let i = 0; i < 256; i++) {
    const x = (i / 255) * (stops.length - 1);
    const j = Math.min(Math.floor(x), stops.length - 2);
    const [r, g, b] = stops[j].map((c, n) => Math.round(c + (x - j) * (stops[j + 1][n] - c)));
    colors.pixels[i] = (255 << 24) | (b << 16) | (g << 8) | r; // bytes r, g, b, a
    colors.css.push(`rgb(${r} ${g} ${b})`);
    const [R, G, B] = [r, g, b].map((c) => c / 255)
      .map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4));
    colors.ink.push(0.2126 * R + 0.7152 * G + 0.0722 * B > 0.179 ? "#000000" : "#ffffff");
  }
  return colors;
}

// Lightness is monotonic along the first two, so they can also be read without color.
const THEMES = {
  light: {
    weight: ramp("#f3f5cf", "#c7e6b4", "#7fcdbb", "#3ba3c4", "#225ea8", "#0a1f5c"),
    surprise: ramp("#ffffff", "#fee3c4", "#fbb877", "#e8762b", "#8f3206"),
    score: ramp("#0b3c7a", "#5e9bd0", "#f7f7f5", "#ea9c4a", "#8a3d00"),
    panel: "#ffffff", text: "#55606d", mark: "#c2410c", kept: "#17734f",
  },
  dark: {
    weight: ramp("#00224e", "#35456c", "#666970", "#948e77", "#c8b866", "#fee838"), // cividis
    surprise: ramp("#161b22", "#46301f", "#8f4d1c", "#d97f2c", "#ffcf94"),
    score: ramp("#8cc8ff", "#2f6ea8", "#20262e", "#b0651c", "#ffbe78"),
    panel: "#161b22", text: "#9aa5b3", mark: "#ff9a5c", kept: "#5cc79b",
  },
};
export const darkness = matchMedia("(prefers-color-scheme: dark)");

/** The colors of the reader's scheme. */
export const theme = () => (darkness.matches ? THEMES.dark : THEMES.light);

// Color an element by a place on a ramp; NaN gets no color.
export function shade(element, colors, fraction) {
  const i = Number.isFinite(fraction) ? Math.round(255 * clamp(fraction, 0, 1)) : null;
  element.style.backgroundColor = i === null ? "" : colors.css[i];
  element.style.color = i === null ? "" : colors.ink[i];
}

/** The color of a number above or below zero. */
export const colorOf = (value) => theme().score.css[value < 0 ? 40 : 215];

/** Color an element by a number between -limit and limit, and return it. */
export function shadeScore(element, value, limit) {
  shade(element, theme().score, 0.5 + value / limit / 2);
  return element;
}

export function scale(colors, ticks) {
  const bar = el("div", { className: "bar" });
  const stops = range(17).map((i) => colors.css[i * 15]);
  bar.style.background = `linear-gradient(to right, ${stops.join(", ")})`;
  const marks = ticks.map(([where, label]) => {
    const mark = el("span", {}, label);
    mark.style.left = `${100 * where}%`;
    return mark;
  });
  return el("div", { className: "scale" }, bar, el("div", { className: "ticks" }, ...marks));
}

export const scoreBar = (limit) =>
  scale(theme().score, [[0, number(-limit, 2)], [0.5, "0"], [1, number(limit, 2)]]);

export const maskedSwatch = () =>
  el("span", {}, el("span", { className: "swatch masked" }), " masked");
