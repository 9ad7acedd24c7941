// The message about an error of the page itself, or a file that ends early. main.js imports this
// first.

function trouble(text) {
  const place = document.getElementById("trouble");
  if (!place.hidden) return; // what follows an error says less
  place.hidden = false;
  place.textContent = text;
}

const broken = (reason) =>
  trouble(`Error: ${reason}. Reload the page; it requires a browser from 2024 or later.`);

addEventListener("error", (event) => broken(event.message));
addEventListener("unhandledrejection", (event) => broken(event.reason));

export const loaded = new Promise((resolve) => (document.readyState === "loading"
  ? addEventListener("DOMContentLoaded", resolve) : resolve()));
loaded.then(() => document.getElementById("end") ??
  trouble("This file is incomplete: snapshots are missing at its end. Download it again."));
