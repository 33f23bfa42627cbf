// Draws a board of deploy/dashboards/ from the HTTP API of a Prometheus. ?board=overview&prometheus=http://host:port
// &minutes=15&rate=1m&model=.*&instance=.*&end=UNIX. It asks for nothing else.
import { drawHeatmap, drawLines, element, format } from "./draw.js";

const BOARDS = ["overview", "prefill", "decode", "transfer", "sessions", "hosts"];
const POINTS = 150;

const given = new URLSearchParams(location.search);
const option = (name, otherwise) => given.get(name) ?? otherwise;
const prometheus = option("prometheus", "http://127.0.0.1:9090");
const minutes = Number(option("minutes", "15"));
const end = Number(option("end", Date.now() / 1000));
const time = { begin: end - minutes * 60, end, step: Math.max(1, Math.round((minutes * 60) / POINTS)) };

async function ask(path, parameters) {
  const answer = await (await fetch(`${prometheus}/api/v1/${path}?${new URLSearchParams(parameters)}`)).json();
  if (answer.status !== "success") throw new Error(answer.error);
  return answer.data.result;
}

const filled = (expression) => expression.replaceAll("$model", option("model", ".*"))
  .replaceAll("$instance", option("instance", ".*")).replaceAll("$__rate_interval", option("rate", "1m"));

const legendOf = (pattern, labels) => pattern.replaceAll(/\{\{(.*?)\}\}/g, (_, name) => labels[name] ?? "");

async function series(panel) {
  const all = [];
  for (const target of panel.targets) {
    const result = await ask("query_range", { query: filled(target.expr), start: time.begin, end: time.end,
      step: time.step });
    for (const one of result) {
      const points = one.values.map(([at, value]) => [at, Number(value)]).filter(([, value]) => isFinite(value));
      if (points.length) all.push({ name: legendOf(target.legendFormat, one.metric), labels: one.metric, points });
    }
  }
  return all;
}

const draw = {
  async stat(panel, box, unit) {
    const [one] = await ask("query", { query: filled(panel.targets[0].expr), time: time.end });
    if (!one || !isFinite(Number(one.value[1]))) return false;
    box.append(element("div", "stat", format(Number(one.value[1]), unit)));
    return true;
  },
  async table(panel, box) {
    const rows = await ask("query", { query: filled(panel.targets[0].expr), time: time.end });
    if (!rows.length) return false;
    const names = Object.keys(rows[0].metric);
    const table = box.appendChild(element("table"));
    const line = (kind, texts) => table.appendChild(element("tr")).append(...texts.map((t) => element(kind, "", t)));
    line("th", names);
    for (const row of rows) line("td", names.map((name) => row.metric[name] ?? ""));
    return true;
  },
  async timeseries(panel, box, unit) {
    const all = await series(panel);
    if (!all.length) return false;
    const { stacking } = panel.fieldConfig.defaults.custom;
    drawLines(box, all, { unit, time, stacked: stacking.mode === "normal", most: panel.fieldConfig.defaults.max });
    return true;
  },
  async heatmap(panel, box, unit) {
    const all = await series(panel);
    if (!all.length) return false;
    return drawHeatmap(box, all, { unit, time });
  },
};

async function show(panel) {
  const { x, y, w, h } = panel.gridPos;
  const box = element("section", panel.type === "row" ? "row" : "");
  box.style.gridArea = `${y + 1} / ${x + 1} / span ${h} / span ${w}`;
  document.getElementById("board").append(box);
  if (panel.type === "row") return box.append(panel.title);
  box.append(element("h2", "", panel.title));
  if (panel.description && panel.type !== "stat") box.append(element("p", "says", panel.description));
  if (!(await draw[panel.type](panel, box, panel.fieldConfig.defaults.unit)))
    box.append(element("div", "none", "nothing to draw"));
}

const name = BOARDS.includes(option("board", "")) ? option("board", "") : BOARDS[0];
const board = await (await fetch(`../${name}.json`)).json();
document.getElementById("title").textContent = board.title;
document.getElementById("about").textContent =
  `${minutes} minutes until ${new Date(end * 1000).toISOString().slice(0, 16).replace("T", " ")} UTC`;
for (const other of BOARDS) {
  const link = element("a", other === name ? "here" : "", other);
  given.set("board", other);
  link.href = `?${given}`;
  document.getElementById("boards").append(link);
}
for (const panel of board.panels) await show(panel);
document.body.dataset.done = "yes";
