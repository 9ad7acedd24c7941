// The message about an error of the page itself. main.js imports this first.

function trouble(reason) {
  const place = document.getElementById("trouble");
  place.hidden = false;
  place.textContent =
    `Error: ${reason}. Reload the page; it requires a browser from 2024 or later.`;
}

addEventListener("error", (event) => trouble(event.message));
addEventListener("unhandledrejection", (event) => trouble(event.reason));
