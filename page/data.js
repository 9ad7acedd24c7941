// What the page shows, by lens/report_data.py; in the playground, by playground/setting.js.

export const data = JSON.parse(document.getElementById("data").textContent);
