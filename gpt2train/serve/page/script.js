// Page of gpt2train: sends a prompt, shows the text while it is generated, and the probability of each token.
// Generated text is inserted as text nodes only, never as HTML.
"use strict";

const ALTERNATIVES = 5;
const DARKEST = Math.log(10000); // surprise in nats of the darkest shade: a probability of 1 in 10,000
const at = (id) => document.getElementById(id);
const text = at("text"), tip = at("tip"), status = at("status"), problem = at("error");
const spanTokens = new WeakMap(); // span -> its tokens
let running = null; // AbortController of the running request
let shown = null; // span that the tooltip describes
let model = null;
let talk = null; // messages of the conversation so far; null where the model continues texts
let indexed = null; // tokens that the server searches for spans of a text; null if it does not
const nodeSpans = new WeakMap(); // node of the text -> its spans in the training tokens

function element(kind, className, content) {
  const made = document.createElement(kind);
  made.className = className;
  if (content !== undefined) made.textContent = content;
  return made;
}

// ---- request

const FIELDS = {
  max_tokens: "Tokens: give a whole number of 1 or more.",
  temperature: "Temperature: give a number from 0 to 100.",
  top_k: "Top-k: give a whole number from 0 to 1000.",
  top_p: "Top-p: give a number above 0, up to 1.",
  seed: "Seed: give a whole number of 0 or more, or leave it empty.",
};

function settings() {
  const request = {};
  for (const [name, remedy] of Object.entries(FIELDS)) {
    const input = at(name);
    const good = input.checkValidity() && !(name === "top_p" && input.valueAsNumber === 0);
    input.toggleAttribute("aria-invalid", false);
    if (!good) {
      input.setAttribute("aria-invalid", "true");
      input.focus();
      throw new Error(remedy);
    }
    if (input.value !== "") request[name] = input.valueAsNumber;
  }
  const stop = at("stop_text").value.replaceAll("\\n", "\n");
  if (stop) request.stop = stop;
  return request;
}

function headers() {
  const sent = { "Content-Type": "application/json" };
  if (at("key").value) sent.Authorization = `Bearer ${at("key").value}`;
  return sent;
}

// ---- response

async function refusal(response) {
  let message = "";
  try {
    const body = await response.json();
    message = body.error?.message ?? body.message ?? "";
  } catch { /* not JSON: use the status */ }
  if (response.status === 401) {
    at("key_field").hidden = false;
    at("key").focus();
    return message || "This server needs an API key: enter it in the settings.";
  }
  const wait = response.headers.get("Retry-After");
  if (response.status === 503) return `${message || "The server is busy."} Try again${wait ? ` in ${wait} s` : " in a moment"}.`;
  return message || `The server refused the request (HTTP ${response.status}).`;
}

async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let held = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const parts = (held + value).split(/\r?\n\r?\n/);
    held = parts.pop();
    for (const part of parts) {
      const data = part.split(/\r?\n/).filter((line) => line.startsWith("data:")).map((line) => line.slice(5).trimStart());
      if (data.length) yield data.join("\n");
    }
  }
}

// Writes text and tokens of chunks. A character can span several tokens, and the server can delay text that may begin a
// stop string; tokens wait here until their text arrives.
class Writer {
  waiting = [];
  count = 0;
  text = "";

  add(choice) {
    const given = choice.logprobs;
    (given?.tokens ?? []).forEach((token, i) => {
      this.waiting.push({ token, logprob: given.token_logprobs[i], top: given.top_logprobs?.[i] ?? {} });
    });
    this.count += given?.tokens?.length ?? 0;
    if (!choice.text) return;
    this.text += choice.text;
    const tokens = this.waiting.splice(0);
    if (tokens.length > 1 && tokens.map(({ token }) => token).join("") === choice.text) tokens.forEach((one) => this.write(one.token, [one]));
    else this.write(choice.text, tokens);
  }

  write(characters, tokens) {
    const span = element("span", "token", characters);
    if (tokens.length) {
      const surprise = -tokens.reduce((sum, one) => sum + one.logprob, 0);
      span.style.setProperty("--unlikely", Math.min(1, surprise / DARKEST).toFixed(3));
      spanTokens.set(span, tokens);
    }
    span.tabIndex = text.querySelector(".token") ? -1 : 0;
    text.append(span);
  }
}

// A choice of a chat's chunk in the form of a completion's.
function completed({ delta, logprobs, finish_reason }) {
  const scored = logprobs?.content ?? [];
  return {
    text: delta.content ?? "",
    finish_reason,
    logprobs: {
      tokens: scored.map(({ token }) => token),
      token_logprobs: scored.map(({ logprob }) => logprob),
      top_logprobs: scored.map((one) => Object.fromEntries(one.top_logprobs.map(({ token, logprob }) => [token, logprob]))),
    },
  };
}

function setChat(on) {
  talk = on ? [] : null;
  at("chat").checked = on;
  at("adopt").textContent = on ? "New conversation" : "Use as prompt";
  at("go").firstChild.textContent = on ? "Send " : "Continue ";
  at("examples").hidden = on;
  showCall();
  at("prompt").placeholder = on ? "Write a message. The model answers." : "Begin a text. The model continues it.";
}

const EXAMPLES = ["Once upon a time", "The first thing to know is", "In the year 1900,"];
for (const example of EXAMPLES) {
  const button = element("button", "plain small", example);
  button.type = "button";
  button.addEventListener("click", () => { at("prompt").value = example; at("prompt").focus(); });
  at("examples").append(button);
}

// The same request by curl.
function showCall() {
  const api = new URL("v1", location.href).href, key = at("key_field").hidden ? "" : " -H 'Authorization: Bearer KEY'";
  const asked = talk ? { messages: [{ role: "user", content: "Hello" }] } : { prompt: EXAMPLES[0], max_tokens: 64 };
  at("api").textContent = api;
  at("curl").textContent = `curl ${api}/${talk ? "chat/" : ""}completions -H 'Content-Type: application/json'${key} -d '${JSON.stringify(asked)}'`;
}

const ENDS = { stop: "end of the text", length: "maximum number of tokens" };

async function generate() {
  problem.hidden = true;
  let request;
  try {
    request = settings();
  } catch (error) {
    return showError(error.message);
  }
  running = new AbortController();
  const began = performance.now(), writer = new Writer(), said = at("prompt").value;
  const messages = talk && [...talk, { role: "user", content: said }];
  let end = null;
  busy(true);
  if (talk?.length) text.append(element("span", "prompt", `\n\n${said}\n`));
  else clear(talk ? `${said}\n` : said);
  try {
    const asked = messages ? { messages, logprobs: true, top_logprobs: ALTERNATIVES } : { prompt: said, logprobs: ALTERNATIVES };
    const body = JSON.stringify({ model, stream: true, ...asked, ...request });
    const path = messages ? "v1/chat/completions" : "v1/completions";
    const response = await fetch(path, { method: "POST", headers: headers(), body, signal: running.signal });
    if (!response.ok) throw new Error(await refusal(response));
    for await (const data of events(response)) {
      if (data === "[DONE]") { end ??= ""; break; }
      const chunk = JSON.parse(data);
      if (chunk.error) throw new Error(chunk.error.message);
      for (const choice of chunk.choices ?? []) {
        writer.add(messages ? completed(choice) : choice);
        end = choice.finish_reason ?? end;
      }
      status.textContent = count(writer.count);
    }
    if (end === null) throw new Error("The connection closed before the text was complete; the server may have been stopped.");
    const seconds = (performance.now() - began) / 1000;
    status.textContent = `${count(writer.count)} in ${seconds.toFixed(1)} s` + (ENDS[end] ? `: ${ENDS[end]}` : "");
  } catch (error) {
    if (error.name === "AbortError") status.textContent = `stopped after ${count(writer.count)}`;
    else showError(error instanceof TypeError ? "No response from the server; it may have been stopped." : error.message);
  } finally {
    if (messages && writer.text) {
      talk = [...messages, { role: "assistant", content: writer.text }];
      at("prompt").value = "";
    }
    running = null;
    busy(false);
  }
  if (indexed !== null && text.querySelector(".token")) await traceText();
}

function count(tokens) {
  return tokens === 1 ? "1 token" : `${tokens} tokens`;
}

function showError(message) {
  status.textContent = "";
  problem.textContent = message;
  problem.hidden = false;
}

function busy(now) {
  at("go").disabled = now;
  at("stop").disabled = !now;
  at("chat").disabled = now;
  at("adopt").disabled = now || !text.querySelector(".token");
  text.classList.toggle("running", now);
  text.setAttribute("aria-busy", String(now));
  if (now) status.textContent = "waiting for the first token…";
}

function clear(prompt) {
  hide();
  at("traced").hidden = at("sources").hidden = true;
  text.replaceChildren(element("span", "prompt", prompt));
}

// ---- spans of the text in the training tokens

async function ask(path, query) {
  const response = await fetch(`${path}?${new URLSearchParams(query)}`, { headers: headers() });
  if (!response.ok) throw new Error(await refusal(response));
  return response.json();
}

async function traceText() {
  const nodes = [...text.querySelectorAll(".prompt, .token")], whole = nodes.map((node) => node.textContent).join("");
  at("traced").hidden = false;
  at("traced").textContent = "searching the training data…";
  try {
    const found = await ask("v1/trace", { text: whole });
    if (running || !nodes[0].isConnected) return; // another text is shown by now
    found.spans.forEach((span) => span.characters && markSpan(span, whole));
    const times = found.spans.length === 1 ? "1 span" : `${found.spans.length} spans`;
    at("traced").textContent = found.spans.length ? `${times} in ${large(found.indexed_tokens)} training tokens` : `not in ${large(found.indexed_tokens)} training tokens`;
  } catch (error) {
    at("traced").textContent = error instanceof TypeError ? "no response from the server" : error.message;
  }
}

// Underlines the nodes of a span; the server counts characters, a string here counts UTF-16 units.
function markSpan(span, whole) {
  const letters = [...whole], units = (count) => letters.slice(0, count).join("").length;
  const start = units(span.characters[0]), end = units(span.characters[1]);
  let place = 0;
  for (const node of [...text.querySelectorAll(".prompt, .token")]) {
    const from = place, to = place + node.textContent.length;
    place = to;
    const low = Math.max(start, from), high = Math.min(end, to);
    if (low >= high) continue;
    for (const part of node.classList.contains("prompt") ? cut(node, low - from, high - from) : [node]) {
      part.classList.add("traced");
      part.tabIndex = part.tabIndex >= 0 || part.classList.contains("prompt") ? 0 : -1;
      nodeSpans.set(part, [...(nodeSpans.get(part) ?? []), span]);
    }
  }
}

// Divides a node of the prompt so that a part of it is a node of its own, and returns that.
function cut(node, low, high) {
  const content = node.textContent;
  const pieces = [content.slice(0, low), content.slice(low, high), content.slice(high)];
  const made = pieces.map((piece) => {
    const copy = element("span", node.className, piece);
    if (nodeSpans.has(node)) nodeSpans.set(copy, nodeSpans.get(node));
    return copy;
  });
  node.replaceWith(...made.filter((one) => one.textContent));
  return [made[1]];
}

async function showSources(node) {
  const spans = nodeSpans.get(node);
  if (!spans) return;
  hide();
  const list = at("places");
  at("sources").hidden = false;
  list.replaceChildren();
  for (const span of spans) {
    const times = span.count === 1 ? "once" : `${span.count.toLocaleString("en")} times`;
    const head = element("p", "span", `“${span.text.trim()}”`);
    head.append(element("span", "soft", ` ${span.end - span.start} tokens, ${times}`));
    list.append(head);
    for (const place of span.places) {
      const made = element("div", "place");
      made.append(heading(place), element("p", "soft", "looking up…"));
      list.append(made);
      describe(made, place, span.end - span.start);
    }
  }
  at("sources_title").focus({ preventScroll: true });
  at("sources").scrollIntoView({ block: "nearest" });
}

function heading(place) {
  const known = place.url ?? "";
  if (!/^https?:\/\//i.test(known)) return element("p", "url", known || `document ${place.document}, page unknown`);
  const link = element("a", "url", known);
  link.href = known;
  link.rel = "noopener noreferrer nofollow";
  link.target = "_blank";
  return link;
}

async function describe(made, place, tokens) {
  try {
    const found = await ask("v1/trace/place", { corpus: place.corpus, position: place.position, tokens });
    const { record, reading } = found;
    const about = [record?.title, record?.date, `tokens ${place.start} to ${place.start + tokens} of ${found.tokens}`];
    const around = element("p", "around", found.before);
    around.append(element("mark", "", found.text), found.after);
    made.lastChild.replaceWith(element("p", "soft", about.filter(Boolean).join(" · ")), around);
    const rows = element("ul", "steps");
    for (const step of record?.steps ?? []) {
      const values = Object.entries(step.values).map(([name, value]) => `${name} ${typeof value === "object" ? JSON.stringify(value) : value}`);
      rows.append(element("li", "", `${step.step}: kept${values.length ? `, ${values.join(", ")}` : ""}`));
      for (const one of step.cuts) rows.append(element("li", "", `${step.step}: cut ${JSON.stringify(one)}`));
    }
    if (record?.page) rows.append(element("li", "", record.page));
    if (reading) {
      const steps = reading.steps.slice(0, 10).join(", ");
      rows.append(element("li", "", reading.count ? `read by ${reading.count} training step${reading.count === 1 ? "" : "s"}: ${steps}${reading.count > 10 ? ", …" : ""}` : "not read by the run so far"));
    }
    if (rows.childNodes.length) made.append(rows);
  } catch (error) {
    made.lastChild.textContent = error instanceof TypeError ? "no response from the server" : error.message;
  }
}

// ---- tooltip: probabilities of a token

function visible(token) {
  return token.replaceAll(" ", "␣").replaceAll("\n", "⏎").replaceAll("\t", "⇥") || "∅";
}

function percent(share) {
  if (share >= 0.9995) return "≈ 100 %";
  if (share < 0.0001) return "< 0.01 %";
  return `${(share * 100).toFixed(share < 0.01 ? 2 : 1)} %`;
}

function row(token, share, chosen) {
  const made = element("div", chosen ? "row chosen" : "row"), track = element("span", "track"), bar = element("b", "");
  bar.style.setProperty("--share", share.toFixed(4));
  track.append(bar);
  made.append(element("span", "name", visible(token)), track, element("span", "number", percent(share)));
  return made;
}

function show(span) {
  const tokens = spanTokens.get(span);
  if (!tokens) return hide();
  const sure = Math.exp(tokens.reduce((sum, one) => sum + one.logprob, 0)), head = element("div", "head");
  head.append(element("span", "name", visible(span.textContent)), element("span", "number", percent(sure)));
  tip.replaceChildren(head);
  if (tokens.length > 1) {
    for (const one of tokens) tip.append(row(one.token, Math.exp(one.logprob), true));
  } else {
    const best = Object.entries(tokens[0].top).sort((one, other) => other[1] - one[1]).slice(0, ALTERNATIVES);
    for (const [token, logprob] of best) tip.append(row(token, Math.exp(logprob), token === tokens[0].token));
  }
  tip.hidden = false;
  shown = span;
  positionTip();
  span.setAttribute("aria-describedby", "tip");
}

function positionTip() {
  const anchor = shown.getClientRects()[0], size = tip.getBoundingClientRect(), gap = 8;
  const left = Math.min(Math.max(gap, anchor.left), document.documentElement.clientWidth - size.width - gap);
  const below = anchor.bottom + gap + size.height <= window.innerHeight;
  tip.style.left = `${left}px`;
  tip.style.top = `${below ? anchor.bottom + gap : Math.max(gap, anchor.top - size.height - gap)}px`;
}

function hide() {
  shown?.removeAttribute("aria-describedby");
  shown = null;
  tip.hidden = true;
}

function moveFocus(event) {
  const tokens = [...text.querySelectorAll(".token")], here = tokens.indexOf(document.activeElement);
  const to = { ArrowLeft: here - 1, ArrowRight: here + 1, Home: 0, End: tokens.length - 1 }[event.key];
  if (here < 0 || to === undefined || !tokens[to]) return;
  event.preventDefault();
  tokens[here].tabIndex = -1;
  tokens[to].tabIndex = 0;
  tokens[to].focus();
}

const tokenOf = (event) => event.target.closest?.(".token");
text.addEventListener("pointerover", (event) => { if (tokenOf(event)) { hide(); show(tokenOf(event)); } });
text.addEventListener("pointerleave", (event) => { if (event.pointerType === "mouse") hide(); });
text.addEventListener("click", (event) => { tokenOf(event)?.focus(); showSources(event.target); });
text.addEventListener("keydown", (event) => { if (event.key === "Enter") showSources(document.activeElement); });
text.addEventListener("focusin", (event) => { if (tokenOf(event)) { hide(); show(tokenOf(event)); } });
text.addEventListener("focusout", hide);
text.addEventListener("keydown", moveFocus);
window.addEventListener("scroll", () => { if (shown) positionTip(); }, { passive: true });
document.addEventListener("keydown", (event) => { if (event.key === "Escape") hide(); });

// ---- controls

at("form").addEventListener("submit", (event) => { event.preventDefault(); if (!running) generate(); });
at("form").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) { event.preventDefault(); at("form").requestSubmit(); }
});
at("close_sources").addEventListener("click", () => { at("sources").hidden = true; text.querySelector(".token")?.focus(); });
at("stop").addEventListener("click", () => running?.abort());
at("shade").addEventListener("change", () => text.classList.toggle("shaded", at("shade").checked));
at("chat").addEventListener("change", () => setChat(at("chat").checked));
at("adopt").addEventListener("click", () => {
  if (talk) {
    setChat(true);
    clear("");
    at("adopt").disabled = true;
  } else at("prompt").value = [...text.querySelectorAll(".prompt, .token")].map((span) => span.textContent).join("");
  at("prompt").focus();
});
text.classList.toggle("shaded", at("shade").checked);

function large(number) {
  if (number >= 1e9) return `${(number / 1e9).toFixed(2)}B`;
  return number >= 1e6 ? `${(number / 1e6).toFixed(1)}M` : number.toLocaleString("en");
}

async function showModel() {
  try {
    const response = await fetch("v1/models", { headers: headers() });
    if (!response.ok) return void (at("model").textContent = await refusal(response));
    const served = (await response.json()).data[0];
    model = served.id;
    indexed = served.indexed_tokens ?? null;
    if (!served.chat || at("chat_field").hidden) setChat(served.chat);
    showCall();
    at("chat_field").hidden = !served.chat;
    const about = [`${large(served.parameters)} parameters`, `context ${served.max_model_len.toLocaleString("en")} tokens`];
    at("model").textContent = [model, ...about].join(" · ");
    document.title = `${model} · gpt2train`;
  } catch {
    at("model").textContent = "no response from the server";
  }
}
at("key").addEventListener("change", showModel);
showModel();
