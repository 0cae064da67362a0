// Shared by the pages of commands at the terminal (`local_page.py`); <body data-command> names the command.
"use strict";

const get = (id) => document.getElementById(id);

function make(name, text, properties) {
  const element = document.createElement(name);
  if (text !== undefined) element.textContent = text;
  return Object.assign(element, properties);
}

// Answer of the command; null after an error, which is shown.
async function call(path, options) {
  let answer;
  try {
    const response = await fetch(path, options);
    answer = await response.json();
  } catch {
    answer = { error: `the command ${document.body.dataset.command} does not answer; start it again` };
  }
  get("error").hidden = !answer.error;
  get("error").textContent = answer.error || "";
  return answer.error ? null : answer;
}

// Runs the action of a key, except while a field is filled in.
function onKeys(actions, mayRepeat) {
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || ["INPUT", "SELECT"].includes(event.target.tagName)) return;
    const action = (mayRepeat || !event.repeat) && actions[event.key.length === 1 ? event.key.toLowerCase() : event.key];
    if (!action) return;
    event.preventDefault();
    action();
  });
}
