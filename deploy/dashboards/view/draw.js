// Lines, stacks and heatmaps as SVG; numbers with units.

const COLOURS = ["#3267b5", "#d9822b", "#2e8b6a", "#b5446e", "#7a5fb8", "#8a7a2d", "#2b9cb5", "#c2513a", "#5c6b7a",
  "#86a82e", "#a0569e", "#4c7f3f"];
const EDGE = { left: 62, right: 10, top: 6, bottom: 20 };

export function element(kind, className = "", text = "") {
  const made = document.createElement(kind);
  if (className) made.className = className;
  if (text) made.textContent = text;
  return made;
}

function svg(kind, attributes, text = "") {
  const made = document.createElementNS("http://www.w3.org/2000/svg", kind);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  if (text) made.textContent = text;
  return made;
}

// Three digits that tell something, no zeros behind them.
const short = (x) => String(Number(Math.abs(x) >= 100 ? x.toFixed(0) : x.toPrecision(3)));

function scaled(value, steps) {
  const [size, name] = steps.find(([size]) => Math.abs(value) >= size) ?? steps.at(-1);
  return `${short(value / size)}${name}`;
}

const SECONDS = [[86400, " d"], [3600, " h"], [60, " min"], [1, " s"], [1e-3, " ms"], [1e-6, " µs"]];
const BYTES = [[2 ** 30, " GiB"], [2 ** 20, " MiB"], [2 ** 10, " KiB"], [1, " B"]];
const COUNT = [[1e9, " G"], [1e6, " M"], [1e4, " k"]];

export function format(value, unit) {
  if (unit === "percentunit") return `${short(value * 100)} %`;
  if (unit === "celsius") return `${short(value)} °C`;
  if (value === 0) return "0";
  if (unit === "s") return scaled(value, SECONDS);
  if (unit === "bytes") return scaled(value, BYTES);
  if (unit === "Bps") return `${scaled(value, BYTES)}/s`;
  const big = COUNT.find(([from]) => Math.abs(value) >= from);
  const text = big ? `${short(value / (big[0] === 1e4 ? 1e3 : big[0]))}${big[1]}` : short(value);
  return unit === "reqps" ? `${text} /s` : text;
}

// From 0 to at least `most`, in three to five even steps that are round in the unit.
function ticks(most, unit) {
  const sizes = { bytes: BYTES, Bps: BYTES, s: SECONDS }[unit] ?? [];
  const base = sizes.find(([size]) => size > 1 && most >= size)?.[0] ?? 1;
  const top = most / base;
  const power = 10 ** Math.floor(Math.log10(top));
  const step = [0.1, 0.2, 0.25, 0.5, 1, 2, 2.5, 5].map((s) => s * power).find((s) => top / s <= 4.001);
  const marks = [];
  for (let i = 0; i === 0 || marks.at(-1) < most * 0.9999; ++i) marks.push(i * step * base);
  return marks;
}

function frame(box, legend) {
  const plot = box.appendChild(element("div", "plot"));
  if (legend) box.append(legend);
  const { width, height } = plot.getBoundingClientRect();
  const picture = plot.appendChild(svg("svg", { viewBox: `0 0 ${width} ${height}` }));
  return { picture, left: EDGE.left, right: width - EDGE.right, top: EDGE.top, bottom: height - EDGE.bottom };
}

function timeAxis(at, { begin, end }) {
  const minutes = (end - begin) / 60;
  const step = [1, 2, 5, 10, 15, 30, 60].find((m) => minutes / m <= 5) * 60 || 3600;
  const x = (t) => at.left + ((t - begin) / (end - begin)) * (at.right - at.left);
  for (let t = Math.ceil(begin / step) * step; t <= end; t += step) {
    const label = new Date(t * 1000).toISOString().slice(11, 16);
    at.picture.append(svg("text", { x: x(t), y: at.bottom + 15, "text-anchor": "middle" }, label));
  }
  return x;
}

// The points of each line as they are drawn: on top of the lines below where they are stacked.
function heaps(all, stacked) {
  const under = new Map();
  return all.map(({ points }) => points.map(([t, value]) => {
    const from = stacked ? under.get(t) ?? 0 : 0;
    if (stacked) under.set(t, from + value);
    return { t, from, to: from + value };
  }));
}

// Stretches without a gap.
function stretches(points, step) {
  const parts = [];
  points.forEach((point, i) => {
    if (i === 0 || point.t - points[i - 1].t > 1.5 * step) parts.push([]);
    parts.at(-1).push(point);
  });
  return parts;
}

export function drawLines(box, all, { unit, time, stacked, most }) {
  const legend = element("div", "legend");
  all.forEach(({ name, points }, i) => {
    const entry = legend.appendChild(element("span"));
    entry.appendChild(element("i")).style.background = COLOURS[i % COLOURS.length];
    entry.append(name);
    entry.append(element("b", "", format(points.at(-1)[1], unit)));
  });
  const at = frame(box, legend);
  const drawn = heaps(all, stacked);
  const highest = most ?? Math.max(...drawn.flat().map(({ to }) => to));
  const marks = ticks(highest > 0 ? highest : 1, unit);
  const y = (value) => at.bottom - (value / marks.at(-1)) * (at.bottom - at.top);
  for (const mark of marks) {
    at.picture.append(svg("line", { class: "grid", x1: at.left, x2: at.right, y1: y(mark), y2: y(mark) }));
    at.picture.append(svg("text", { x: at.left - 6, y: y(mark) + 4, "text-anchor": "end" }, format(mark, unit)));
  }
  const x = timeAxis(at, time);
  drawn.forEach((points, i) => {
    const colour = COLOURS[i % COLOURS.length];
    for (const part of stretches(points, time.step)) {
      const edge = part.map(({ t, to }) => `${x(t).toFixed(1)},${y(to).toFixed(1)}`);
      const floor = part.map(({ t, from }) => `${x(t).toFixed(1)},${y(from).toFixed(1)}`).reverse();
      at.picture.append(svg("polygon", { points: [...edge, ...floor].join(" "), fill: colour,
        opacity: stacked ? 0.35 : 0.07 }));
      if (stacked && part.every(({ from, to }) => from === to)) continue;  // it would hide the one below
      at.picture.append(svg("polyline", { points: edge.join(" "), fill: "none", stroke: colour, "stroke-width": 1.6 }));
    }
  });
}

// One row for each bucket that ever had something. False: none had.
export function drawHeatmap(box, all, { unit, time }) {
  const buckets = all.map(({ labels, points }) => ({ bound: Number(labels.le.replace("+Inf", "Infinity")),
    values: new Map(points) })).sort((a, b) => a.bound - b.bound);
  const rows = buckets.map(({ bound, values }, i) => ({ bound, cells: [...values].map(([t, value]) =>
    [t, value - (i === 0 ? 0 : buckets[i - 1].values.get(t) ?? 0)]) }));
  const used = rows.map(({ cells }) => cells.some(([, value]) => value > 1e-9));
  if (!used.includes(true)) return false;
  const shown = rows.slice(Math.max(0, used.indexOf(true) - 1), Math.min(rows.length, used.lastIndexOf(true) + 2));
  const at = frame(box);
  const height = (at.bottom - at.top) / shown.length;
  const x = timeAxis(at, time);
  const width = x(time.begin + time.step) - x(time.begin) + 0.4;
  const highest = Math.max(...shown.flatMap(({ cells }) => cells.map(([, value]) => value)));
  shown.forEach(({ bound, cells }, row) => {
    const y = at.bottom - (row + 1) * height;
    if (row % Math.ceil(14 / height) === 0) {
      const label = isFinite(bound) ? `≤ ${format(bound, unit)}` : "more";
      at.picture.append(svg("text", { x: at.left - 6, y: y + height / 2 + 4, "text-anchor": "end" }, label));
    }
    at.picture.append(svg("line", { class: "grid", x1: at.left, x2: at.right, y1: y, y2: y }));
    for (const [t, value] of cells) {
      if (value <= 1e-9) continue;
      const depth = Math.sqrt(value / highest);
      at.picture.append(svg("rect", { x: x(t), y: y + 0.5, width, height: Math.max(1, height - 1),
        fill: `hsl(${215 - 20 * depth} 70% ${92 - 60 * depth}%)` }));
    }
  });
  return true;
}
