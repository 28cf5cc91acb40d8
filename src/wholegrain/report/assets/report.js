const dark = window.matchMedia("(prefers-color-scheme: dark)");
const root = document.documentElement;
// The colours of figures.py, brighter: on dark ground the same hues stand out as they do on light.
const BRIGHT = {
  "#0072b2": "#4fa3ea", "#d55e00": "#ff8b42", "#009e73": "#31cc9d", "#c2699b": "#e8a0c8",
  "#b57d00": "#f4bd42", "#3c93c8": "#a8dcff", "#665800": "#cbb53f", "#7f7f7f": "#b4b4b4",
};
const forGround = (text) => (dark.matches ? text.replace(/#[0-9a-f]{6}/g, (colour) => BRIGHT[colour] ?? colour) : text);
const ground = () => {
  const style = getComputedStyle(root);
  const colour = (name) => style.getPropertyValue(name).trim();
  const [text, soft, line] = [colour("--text"), colour("--soft"), colour("--line")];
  return {
    background: "transparent",
    font: "system-ui, sans-serif",
    view: { stroke: "transparent" },
    axis: { labelColor: soft, titleColor: text, gridColor: line, domainColor: line, tickColor: line, labelFontSize: 12, titleFontSize: 12, titlePadding: 9 },
    legend: { labelColor: text, titleColor: text, labelFontSize: 12, symbolBaseStrokeColor: text, symbolBaseFillColor: text },
    mark: { aria: false },
  };
};
const draw = async () => {
  const charts = JSON.parse(forGround(document.getElementById("charts").textContent));
  for (const place of document.querySelectorAll("[data-chart]")) {
    // ast: expressions are interpreted, because the policy of the page lets no text become code.
    const menu = place.classList.contains("small") ? false : { export: true, source: false, compiled: false, editor: false };
    const [chart, config] = [charts[place.dataset.chart], ground()];
    const label = 50 + 7 * chart.usermeta.longest_label;
    config.legend.columns = Math.max(1, Math.floor((place.clientWidth - 90) / label));
    await window.vegaEmbed(place, chart, { actions: menu, renderer: "svg", ast: true, config });
    const opener = place.querySelector("summary");
    if (opener) opener.setAttribute("aria-label", "Save this chart");
  }
  root.dataset.ground = dark.matches ? "dark" : "light";
  root.dataset.drawn = "yes";
};

// A table that can be sorted: numbers by size, whatever words stand around them, and the rest by the alphabet.
const sortKey = (row, column) => {
  const text = row.cells[column].textContent.trim();
  if (text === "∞") return Infinity;
  const found = text.replace("–", "").match(/-?\d+(\.\d+)?(e[+-]?\d+)?/i);
  return found && column > 0 ? Number(found[0]) : text;
};
const compare = (a, b) => (typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b)));
const sort = (table, column) => {
  const head = table.tHead.rows[0].cells[column];
  const way = head.getAttribute("aria-sort") === "descending" ? 1 : -1;
  for (const cell of table.tHead.rows[0].cells) cell.removeAttribute("aria-sort");
  head.setAttribute("aria-sort", way > 0 ? "ascending" : "descending");
  const rows = [...table.tBodies[0].rows];
  rows.sort((a, b) => way * compare(sortKey(a, column), sortKey(b, column)));
  table.tBodies[0].append(...rows);
};
const makeSortable = () => {
  for (const table of document.querySelectorAll("table[data-sortable]")) {
    [...table.tHead.rows[0].cells].forEach((cell, column) => {
      const button = document.createElement("button");
      button.textContent = cell.textContent;
      button.addEventListener("click", () => sort(table, column));
      cell.replaceChildren(button);
    });
  }
};

// A live page takes its new content from its own server, and stays where the reader is.
const update = async () => {
  const news = document.getElementById("news");
  try {
    const stamp = await (await fetch("stamp", { cache: "no-store" })).text();
    if (stamp !== root.dataset.live) {
      const answer = await fetch("content", { cache: "no-store" });
      const text = await answer.text();
      if (answer.ok) await show(text, stamp);
      news.textContent = answer.ok ? `Updated at ${new Date().toLocaleTimeString()}.` : text;
    } else if (news.dataset.lost) {
      news.textContent = "";
    }
    delete news.dataset.lost;
  } catch {
    news.dataset.lost = "yes";
    news.textContent = "wholegrain watch has ended: this page is as it was last.";
  }
  setTimeout(update, 1000);
};
const show = async (text, stamp) => {
  const open = new Set([...document.querySelectorAll("details[data-keep][open]")].map((each) => each.dataset.keep));
  const fresh = new DOMParser().parseFromString(text, "text/html");
  document.getElementById("content").replaceChildren(...fresh.body.childNodes);
  for (const each of document.querySelectorAll("details[data-keep]")) each.open = open.has(each.dataset.keep);
  document.title = `wholegrain: ${document.querySelector("h1").textContent}`;
  makeSortable();
  await draw();
  root.dataset.live = stamp;
};

dark.addEventListener("change", draw);
makeSortable();
draw().then(() => { if ("live" in root.dataset) update(); });
