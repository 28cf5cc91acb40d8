const charts = JSON.parse(document.getElementById("charts").textContent);
const dark = window.matchMedia("(prefers-color-scheme: dark)");
const ground = () => {
  const style = getComputedStyle(document.documentElement);
  const colour = (name) => style.getPropertyValue(name).trim();
  const [text, soft, line] = [colour("--text"), colour("--soft"), colour("--line")];
  return {
    background: "transparent",
    font: "system-ui, sans-serif",
    view: { stroke: "transparent" },
    axis: { labelColor: soft, titleColor: text, gridColor: line, domainColor: line, tickColor: line, labelFontSize: 12, titleFontSize: 12 },
    legend: { labelColor: text, titleColor: text, labelFontSize: 12, symbolBaseStrokeColor: text, symbolBaseFillColor: text },
  };
};
const draw = async () => {
  for (const place of document.querySelectorAll("[data-chart]")) {
    // ast: expressions are interpreted, because the policy of the page lets no text become code.
    const options = { actions: { export: true, source: false, compiled: false, editor: false }, renderer: "svg", ast: true, config: ground() };
    await window.vegaEmbed(place, charts[place.dataset.chart], options);
  }
  document.documentElement.dataset.drawn = "yes";
};
dark.addEventListener("change", draw);
draw();
if ("live" in document.documentElement.dataset) {
  const seen = document.documentElement.dataset.live;
  setInterval(async () => {
    try {
      const stamp = await (await fetch("stamp", { cache: "no-store" })).text();
      if (stamp !== seen) location.reload();
    } catch { /* the server is gone: the page stays as it is */ }
  }, 1000);
}
