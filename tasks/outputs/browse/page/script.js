"use strict";

let hits = []; // documents found
let at = -1; // the one that is shown
let on = null; // where a search goes on, or null
let asked = 0; // number of the last document asked for: an answer to an earlier one is dropped

const ask = (name, parameters) => call(`${name}?${new URLSearchParams(parameters)}`);

async function search(start) {
  const query = get("query").value;
  get("found").textContent = "Searching …";
  const found = await ask("search", { query, kind: get("kind").value, start });
  if (!found) { get("found").textContent = ""; return; }
  if (!start) { hits = []; at = -1; get("hits").replaceChildren(); }
  for (const hit of found.hits) {
    const number = hits.push(hit) - 1;
    const button = make("button", hit.title || hit.url || hit.id, { type: "button" });
    button.append(make("small", hit.reason ? `${hit.step}: rejected, ${hit.reason} · ${hit.url}` : hit.url), make("small", hit.excerpt));
    button.addEventListener("click", () => choose(number));
    const item = make("li");
    item.append(button);
    get("hits").append(item);
  }
  on = found.next;
  const share = found.share < 1 ? `, ${Math.floor(100 * found.share)} % of the files searched` : "";
  get("found").textContent = `${hits.length}${found.cut ? "+" : ""} found by ${found.kind}${share}`;
  get("more").hidden = on === null;
  if (!start && hits.length) choose(0);
}

function choose(number) {
  if (number < 0 || number >= hits.length) return;
  at = number;
  [...get("hits").querySelectorAll("button")].forEach((button, index) => {
    if (index === at) { button.setAttribute("aria-current", "true"); button.scrollIntoView({ block: "nearest" }); }
    else button.removeAttribute("aria-current");
  });
  show(hits[at].id, hits[at].url, hits[at].title);
}

async function show(id, url, title) {
  const mine = ++asked;
  const found = await ask("document", { id, url });
  if (!found || mine !== asked) return;
  get("document").hidden = false;
  get("title").textContent = title || found.url || found.id;
  get("url").textContent = found.url;
  get("id").textContent = found.id || "no text, so no id";
  let last = null; // step that wrote the text before
  get("way").replaceChildren(...found.stages.map((stage) => {
    const item = make("li");
    const rest = make("span", [stage.reason, stage.detail].filter(Boolean).join(": "));
    const facts = Object.entries(stage.facts || {}).map(([name, value]) => `${name} ${value}`);
    if (stage.file) facts.unshift(`${stage.file} row ${stage.row}`);
    if (facts.length) rest.append(make("span", (rest.textContent ? " · " : "") + facts.join(" · "), { className: "soft" }));
    if (stage.characters !== undefined) {
      rest.append(" ", small(`${stage.characters.toLocaleString("en")} characters`, () => text(stage.step, id)));
      if (stage.changed) rest.append(" ", small("changed", ((from) => () => compare(from, id, stage.step, id))(last)));
      last = stage.step;
    }
    if (stage.explained) rest.append(" ", small("parts of the page", () => account(id, found.url)));
    item.append(make("b", stage.step), make("span", stage.result, { className: stage.result }), rest);
    return item;
  }));
  tokens(found);
  duplicates(found);
  get("text-title").textContent = "";
  get("text").replaceChildren();
  if (found.id) text(last || "", found.id);
}

function small(label, action) {
  const button = make("button", label, { type: "button", className: "plain small" });
  button.addEventListener("click", action);
  return button;
}

function tokens(found) {
  const lines = found.tokens.flatMap((part) => [
    make("p", `${part.split}: tokens ${part.start.toLocaleString("en")} to ${(part.end - 1).toLocaleString("en")}`),
    ...part.runs.map((run) => make("p", run.note ? `${run.run}: ${run.note}` :
      `${run.run}: ${run.count} ${run.count === 1 ? "sample" : "samples"} of the first epoch: ${run.samples.join(", ")}${run.count > run.samples.length ? ", …" : ""}`, { className: "soft break" })),
  ]);
  get("tokens").replaceChildren(...(lines.length ? [make("h3", "Tokens and samples"), ...lines] : []));
}

function duplicates(found) {
  const title = make("h3", "Duplicates");
  if (!found.knows_duplicates) { get("duplicates").replaceChildren(title, make("p", "unknown: this output has no clusters", { className: "soft" })); return; }
  if (!found.duplicates.length) { get("duplicates").replaceChildren(title, make("p", "none", { className: "soft" })); return; }
  get("duplicates").replaceChildren(title, ...found.duplicates.map((row) => {
    const line = make("p", "", { className: "break" });
    const how = row.is_keeper ? "kept instead" : row.reason || "kept";
    const similar = row.jaccard === null ? "" : ` · Jaccard with what was kept ${row.jaccard.toFixed(3)}`;
    line.append(small("difference", () => compare("", found.id, "", row.id)), " ", small("show", () => show(row.id, row.url)), ` ${how}${similar} `, make("span", row.url, { className: "soft" }));
    return line;
  }));
}

async function text(step, id) {
  const found = await ask("text", { step, id });
  if (!found) return;
  get("text-title").textContent = `Text, as ${found.step} wrote it`;
  get("text").textContent = found.text + (found.cut ? "\n\n… (the rest is not shown)" : "");
  get("text").scrollTop = 0;
}

async function account(id, url) {
  const found = await ask("account", { id, url });
  if (!found) return;
  get("text-title").textContent = `Parts of the page, ${found.encoding}: ${found.characters.toLocaleString("en")} characters are kept`;
  const html = new DOMParser().parseFromString(found.html, "text/html"); // as `data explain` writes it, escaped
  get("text").replaceChildren(...html.body.childNodes);
  get("text").scrollTop = 0;
}

async function compare(step, id, otherStep, other) {
  const found = await ask("difference", { step, id, other_step: otherStep, other });
  if (!found) return;
  const names = { same: "span", removed: "del", added: "ins" };
  get("text-title").textContent = `Difference, from ${found.steps[0]} ${id === other ? "" : id.slice(0, 8)} to ${found.steps[1]} ${id === other ? "" : other.slice(0, 8)}${found.cut ? " (beginnings)" : ""}`;
  get("text").replaceChildren(...found.pieces.map(([kind, piece]) => make(names[kind], piece)));
  get("text-title").scrollIntoView({ block: "nearest" });
}

async function count(by) {
  const found = await ask("counts", { by });
  if (!found) return;
  const head = make("tr");
  head.append(...[by, ...found.steps].map((name) => make("th", name)));
  const rows = found.rows.map(([name, ...numbers]) => {
    const row = make("tr");
    const first = make("td");
    if (by === "host" && name !== "unknown") first.append(small(name, () => { get("query").value = name; get("kind").value = "host"; search(0); }));
    else first.textContent = name;
    row.append(first, ...numbers.map((number) => make("td", number.toLocaleString("en"))));
    return row;
  });
  get("counts").replaceChildren(head, ...rows);
  if (found.more) get("counts").append(make("caption", `and ${found.more.toLocaleString("en")} more`));
}

async function overview() {
  const found = await ask("overview", {});
  if (!found) return;
  get("root").textContent = found.root;
  const head = make("tr");
  head.append(...["step", "seen", "kept", "rejected, by reason"].map((name) => make("th", name)));
  get("steps").replaceChildren(head, ...found.steps.map((step) => {
    const row = make("tr");
    const reasons = Object.entries(step.reasons).sort((a, b) => b[1] - a[1]).map(([name, number]) => `${name} ${number.toLocaleString("en")}`);
    row.append(make("td", step.step), make("td", step.seen.toLocaleString("en")), make("td", step.kept.toLocaleString("en")), make("td", reasons.join(", "), { className: "left" }));
    return row;
  }));
  count("host");
}

get("form").addEventListener("submit", (event) => { event.preventDefault(); search(0); });
get("more").addEventListener("click", () => search(on));
for (const button of document.querySelectorAll("[data-by]")) button.addEventListener("click", () => count(button.dataset.by));
onKeys({
  "/": () => { get("query").focus(); get("query").select(); },
  j: () => choose(at + 1),
  k: () => choose(at - 1),
  c: () => get("corpus").scrollIntoView(),
}, true);
overview();
const linked = new URLSearchParams(location.search); // a link of another page
if (linked.has("id") || linked.has("url")) show(linked.get("id") || "", linked.get("url") || "");
