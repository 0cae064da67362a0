"use strict";
// Draws curves of runs as SVG. A point is [step, tokens, hours, value].
const { runs } = JSON.parse(document.getElementById("data").textContent);
const AXES = ["step", "tokens", "hours"];
const COLOURS = 10, HEIGHT = 270;
const EDGE = { left: 62, right: 12, top: 10, bottom: 26 };
const view = { axis: 0, log: false, smooth: 0.6, shown: runs.map(() => true), lit: null };
const tip = document.getElementById("tip");
const figures = [...document.querySelectorAll("figure")];

const colour = (run) => `var(--c${run % COLOURS})`;
const dash = (run) => ["", "7 4", "2 3", "9 3 2 3"][Math.floor(run / COLOURS) % 4];

function element(name, attributes, parent) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (parent) parent.append(made);
  return made;
}

function brief(value) {
  const size = Math.abs(value);
  for (const [unit, scale] of [["T", 1e12], ["B", 1e9], ["M", 1e6], ["k", 1e3]]) {
    if (size >= 10 * scale || (scale > 1e3 && size >= scale)) return `${+(value / scale).toPrecision(3)}${unit}`;
  }
  return size > 0 && size < 1e-2 ? value.toExponential(1) : (+value.toPrecision(4)).toLocaleString("en");
}

function exact(value) {
  if (value !== 0 && Math.abs(value) < 1e-2) return value.toExponential(3);
  return value.toLocaleString("en", { maximumFractionDigits: Math.abs(value) < 100 ? 4 : 0 });
}

// Exponential moving average with bias correction, as in Adam.
function smoothed(points, weight) {
  let mean = 0;
  return points.map((point, at) => {
    mean = weight * mean + (1 - weight) * point[3];
    return [point[0], point[1], point[2], mean / (1 - weight ** (at + 1))];
  });
}

function ticks(low, high, count) {
  if (!(high > low)) return [low];
  const rough = (high - low) / count, power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].find((times) => times * power >= rough) * power;
  const found = [];
  for (let at = Math.ceil(low / step - 1e-9) * step; at <= high + step * 1e-9; at += step) found.push(at);
  return found;
}

function draw(figure) {
  const curve = figure.dataset.curve, width = figure.clientWidth - 32;
  if (width < 60) return;
  figure.querySelector("svg")?.remove();
  const svg = element("svg", { viewBox: `0 0 ${width} ${HEIGHT}`, role: "img", "aria-label": figure.textContent.trim() });
  figure.append(svg);
  const lines = runs.map((run, at) => ({ at, raw: run.curves[curve] })).filter((one) => view.shown[one.at] && one.raw.length);
  for (const line of lines) line.points = curve === "loss" ? smoothed(line.raw, view.smooth) : line.raw;
  if (!lines.length) {
    element("text", { x: width / 2, y: HEIGHT / 2, class: "none" }, svg).textContent = "nothing to draw";
    figure.chart = null;
    return;
  }
  const log = view.log && (curve === "loss" || curve === "valid");
  const across = (point) => point[view.axis], scale = (value) => (log ? Math.log(value) : value);
  let [left, right, low, high] = [Infinity, -Infinity, Infinity, -Infinity];
  for (const line of lines) for (const point of line.points) {
    left = Math.min(left, across(point)); right = Math.max(right, across(point));
    low = Math.min(low, scale(point[3])); high = Math.max(high, scale(point[3]));
  }
  if (curve === "speed" || curve === "lr") low = 0;
  const margin = (high - low || Math.abs(high) || 1) * 0.04;
  [low, high] = [low - (low === 0 ? 0 : margin), high + margin];
  if (right === left) [left, right] = [left - (left ? 0.5 * Math.abs(left) : 0.5), right + (right ? 0.5 * Math.abs(right) : 0.5)];
  const x = (value) => EDGE.left + ((value - left) / (right - left)) * (width - EDGE.left - EDGE.right);
  const y = (value) => HEIGHT - EDGE.bottom - ((scale(value) - low) / (high - low)) * (HEIGHT - EDGE.top - EDGE.bottom);

  for (const value of ticks(log ? Math.exp(low) : low, log ? Math.exp(high) : high, 5)) {
    if (log && value <= 0) continue;
    element("line", { x1: EDGE.left, x2: width - EDGE.right, y1: y(value), y2: y(value), class: "grid" }, svg);
    element("text", { x: EDGE.left - 7, y: y(value) + 4, "text-anchor": "end" }, svg).textContent = brief(value);
  }
  const marks = ticks(left, right, Math.max(2, Math.floor(width / 110)));
  for (const value of marks) {
    const anchor = x(value) > width - 30 ? "end" : "middle";
    element("text", { x: anchor === "end" ? width : x(value), y: HEIGHT - 9, "text-anchor": anchor }, svg).textContent = brief(value);
  }

  for (const line of lines) {
    const style = { stroke: colour(line.at), "stroke-dasharray": dash(line.at), "data-run": line.at };
    const path = (points) => points.map((point) => `${x(across(point)).toFixed(1)},${y(point[3]).toFixed(1)}`).join(" ");
    const within = line.raw.filter((point) => scale(point[3]) >= low && scale(point[3]) <= high);
    if (curve === "loss" && view.smooth > 0) element("polyline", { ...style, class: "raw", points: path(within) }, svg);
    element("polyline", { ...style, points: path(line.points) }, svg);
    const few = line.points.length <= 30 && curve === "valid";
    for (const point of few || line.points.length === 1 ? line.points : []) {
      element("circle", { cx: x(across(point)), cy: y(point[3]), r: 2.8, fill: colour(line.at), "data-run": line.at }, svg);
    }
  }
  figure.chart = { svg, lines, across, x, left, right, width };
  svg.addEventListener("pointermove", (event) => point(figure, event));
  svg.addEventListener("pointerleave", leave);
  light();
}

function nearest(points, across, value) {
  let [low, high] = [0, points.length - 1];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (across(points[middle]) < value) low = middle + 1; else high = middle;
  }
  return low > 0 && value - across(points[low - 1]) < across(points[low]) - value ? points[low - 1] : points[low];
}

function point(figure, event) {
  const { svg, lines, across, x, left, right, width } = figure.chart;
  const box = svg.getBoundingClientRect();
  const part = (event.clientX - box.left - EDGE.left) / (width - EDGE.left - EDGE.right);
  const value = left + Math.min(1, Math.max(0, part)) * (right - left);
  svg.querySelector(".hair")?.remove();
  element("line", { x1: x(value), x2: x(value), y1: EDGE.top, y2: HEIGHT - EDGE.bottom, class: "hair" }, svg);
  // Omit runs that ended before this position.
  const here = lines.filter((line) => value <= across(line.points.at(-1)) + (right - left) * 0.01);
  const found = here.map((line) => ({ at: line.at, point: nearest(line.points, across, value) }));
  found.sort((one, other) => one.point[3] - other.point[3]);
  const head = document.createElement("div");
  head.className = "soft";
  head.textContent = view.axis === 0 ? `step ${exact(Math.round(value))}` : `${brief(value)} ${AXES[view.axis]}`;
  tip.replaceChildren(head, ...found.map(row));
  tip.hidden = false;
  const beside = event.clientX + 18 + tip.offsetWidth > innerWidth ? event.clientX - 18 - tip.offsetWidth : event.clientX + 18;
  tip.style.transform = `translate(${Math.max(4, beside)}px, ${Math.max(4, Math.min(event.clientY + 14, innerHeight - tip.offsetHeight - 8))}px)`;
}

function row(one) {
  const made = document.createElement("div"), mark = document.createElement("i");
  made.className = "row";
  mark.className = "swatch";
  swatch(mark, one.at);
  const parts = [["name", runs[one.at].name], ["number", exact(one.point[3])]].map(([kind, text]) => {
    const part = document.createElement("span");
    part.className = kind;
    part.textContent = text;
    return part;
  });
  made.append(mark, ...parts);
  return made;
}

function leave() {
  tip.hidden = true;
  for (const hair of document.querySelectorAll(".hair")) hair.remove();
}

function swatch(mark, run) {
  mark.style.borderTopColor = colour(run);
  mark.style.borderTopStyle = dash(run) ? "dashed" : "solid";
}

function light() {
  for (const svg of document.querySelectorAll("svg")) {
    svg.classList.toggle("dim", view.lit !== null);
    for (const mark of svg.querySelectorAll("[data-run]")) mark.classList.toggle("on", +mark.dataset.run === view.lit);
  }
}

function redraw() {
  leave();
  for (const box of document.querySelectorAll("#runs input")) {
    box.checked = view.shown[+box.dataset.run];
    box.closest("tr").classList.toggle("off", !box.checked);
  }
  figures.forEach(draw);
}

for (const line of document.querySelectorAll("#runs tbody tr")) {
  const at = +line.dataset.run;
  swatch(line.querySelector(".swatch"), at);
  line.addEventListener("pointerenter", () => { view.lit = view.shown[at] ? at : null; light(); });
  line.addEventListener("pointerleave", () => { view.lit = null; light(); });
  line.querySelector("input").addEventListener("change", (event) => { view.shown[at] = event.target.checked; redraw(); });
}
for (const mark of document.querySelectorAll(".swatch[data-run]")) swatch(mark, +mark.dataset.run);
for (const radio of document.querySelectorAll("[name=axis]")) {
  radio.addEventListener("change", () => { view.axis = +radio.value; redraw(); });
}
document.getElementById("log").addEventListener("change", (event) => { view.log = event.target.checked; redraw(); });
document.getElementById("smooth").addEventListener("input", (event) => { view.smooth = +event.target.value; redraw(); });
document.getElementById("all").addEventListener("click", () => { view.shown.fill(true); redraw(); });
document.getElementById("none").addEventListener("click", () => { view.shown.fill(false); redraw(); });
new ResizeObserver(() => figures.forEach(draw)).observe(document.querySelector(".charts"));
document.querySelector("form").reset();
redraw();
