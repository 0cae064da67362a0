"use strict";

const sides = Object.fromEntries([...document.querySelectorAll("article")].map((one) => [one.dataset.side, one]));
const done = []; // ids with a vote in this page, the last one at the end
let shown = {}; // document on each side, or null
let active = "kept";
let busy = false;

const post = (name, body) => call(name, {
  method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body),
});

function show(state) {
  const votes = state.good + state.bad;
  get("count").textContent = votes;
  get("needed").textContent = state.needed;
  get("good").textContent = state.good;
  get("bad").textContent = state.bad;
  get("progress").max = state.needed;
  get("progress").value = Math.min(votes, state.needed);
  get("train").disabled = votes < state.needed;
  for (const [side, card] of Object.entries(sides)) {
    const next = state.next[side];
    if (next && shown[side] && next.id === shown[side].id) continue;
    shown[side] = next;
    const part = (name) => card.querySelector(name);
    part(".text").textContent = next ? next.text + (next.cut ? "\n\n… (the rest is not shown)" : "") : "No more documents on this side.";
    part(".text").scrollTop = 0;
    part(".url").textContent = next ? next.url : "";
    part(".url").title = next ? next.url : "";
    part(".way").hidden = !next;
    if (next) part(".way").href = `browse/?${new URLSearchParams({ id: next.id, url: next.url })}`;
    part(".size").textContent = next ? `${next.characters.toLocaleString("en")} characters` : "";
    part(".detail").textContent = next && next.reason ? `${next.reason}: ${next.detail}` : "";
  }
  if (!shown[active] && shown[other()]) active = other();
  mark();
}

const other = () => (active === "kept" ? "rejected" : "kept");

function mark() {
  for (const [side, card] of Object.entries(sides)) card.classList.toggle("active", side === active);
  for (const id of ["vote-good", "vote-bad", "skip"]) get(id).disabled = !shown[active];
  get("undo").disabled = !done.length;
}

function switchSide() {
  if (shown[other()]) active = other();
  mark();
}

async function once(action) {
  if (busy) return; // a key that is held down does not vote on documents that were not seen
  busy = true;
  try {
    await action();
  } finally {
    busy = false;
  }
}

const vote = (given) => once(async () => {
  const current = shown[active];
  if (!current) return;
  const state = await post("vote", { id: current.id, vote: given });
  if (!state) return;
  if (given !== "skip") done.push(current.id);
  if (state.next[other()]) active = other();
  show(state);
});

const undo = () => once(async () => {
  if (!done.length) return;
  const id = done[done.length - 1];
  const state = await post("vote", { id, vote: null });
  if (!state) return;
  done.pop();
  const side = Object.keys(sides).find((one) => state.next[one] && state.next[one].id === id);
  if (side) active = side;
  show(state);
});

const train = () => once(async () => {
  get("train").disabled = true;
  const found = await post("train", { precision: get("precision").valueAsNumber });
  get("train").disabled = false;
  if (!found) return;
  get("auc").textContent = `${found.auc.toFixed(3)} ± ${found.auc_error.toFixed(3)}`;
  get("threshold").textContent = found.threshold.toFixed(4);
  get("at").textContent = `${(100 * found.precision).toFixed(1)} % of the kept ones are good, ${(100 * found.recall).toFixed(1)} % of the good ones are kept`;
  get("use").textContent = `--clean.filters.quality.model ${found.model}`;
  get("curve").replaceChildren(draw(found.curve, found.threshold));
  get("result").hidden = false;
});

function draw(curve, threshold) {
  const make = (name, attributes, text) => {
    const element = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    if (text) element.textContent = text;
    return element;
  };
  const x = (value) => 30 + 380 * value;
  const y = (value) => 110 - 100 * value;
  const svg = make("svg", { viewBox: "0 0 420 130", role: "img", "aria-label": "precision and recall by threshold" });
  for (const value of [0, 0.5, 1]) {
    svg.append(make("line", { class: "axis", x1: x(0), x2: x(1), y1: y(value), y2: y(value) }));
    svg.append(make("text", { x: 24, y: y(value) + 4, "text-anchor": "end" }, String(value)));
    svg.append(make("text", { x: x(value), y: 126, "text-anchor": "middle" }, String(value)));
  }
  svg.append(make("line", { class: "chosen", x1: x(threshold), x2: x(threshold), y1: y(0), y2: y(1) }));
  for (const name of ["precision", "recall"]) {
    const points = curve.map((point) => `${x(point.threshold)},${y(point[name])}`).join(" ");
    svg.append(make("polyline", { class: name, points }));
  }
  return svg;
}

onKeys({
  w: () => { const link = sides[active].querySelector(".way"); if (!link.hidden) link.click(); },
  g: () => vote("good"), b: () => vote("bad"), s: () => vote("skip"), u: undo, ArrowLeft: switchSide, ArrowRight: switchSide,
});
get("vote-good").addEventListener("click", () => vote("good"));
get("vote-bad").addEventListener("click", () => vote("bad"));
get("skip").addEventListener("click", () => vote("skip"));
get("undo").addEventListener("click", undo);
get("side").addEventListener("click", switchSide);
get("train").addEventListener("click", train);
for (const [side, card] of Object.entries(sides)) {
  card.addEventListener("click", () => { if (shown[side]) { active = side; mark(); } });
}
call("state").then((state) => { if (state) show(state); });
