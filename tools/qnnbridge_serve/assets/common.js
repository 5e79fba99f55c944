// Functions that all parts of the page use: create elements, send requests, format values.

export const $ = (id) => document.getElementById(id);

// Create an element with attributes, event listeners (functions) and children. Strings become text nodes, never markup.
export function make(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") made.addEventListener(name, value);
    else if (value === true) made.setAttribute(name, "");
    else if (value !== false && value !== undefined && value !== null) made.setAttribute(name, value);
  }
  made.append(...children.flat().filter((child) => child !== undefined && child !== null));
  return made;
}

// Replace the text only if it differs, so that a selection in it is kept.
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

// Create a select element from [value, text] pairs.
export const choice = (options, more = {}) =>
  make("select", more, options.map(([value, text]) => make("option", { value }, text)));

export const table = (headers, rows, more = {}) =>
  make("div", { class: "wide" }, make("table", more,
    make("thead", {}, make("tr", {}, headers.map((text) => make("th", {}, text)))),
    make("tbody", {}, rows.map((row) => make("tr", {}, row.map((cell) => make("td", {}, cell)))))));

// --- requests ---

const KEY = "qnnbridge token";
let token = "";
try { token = sessionStorage.getItem(KEY) ?? ""; } catch { /* the browser blocks storage: keep the token only until the page is closed */ }

export const hasToken = () => token !== "";
export function keepToken(text) {
  token = text;
  try { if (text) sessionStorage.setItem(KEY, text); else sessionStorage.removeItem(KEY); } catch { /* see above */ }
}

// Error of a failed request, with the server's message. status: HTTP status; 0 without an answer.
export class Failed extends Error {
  constructor(status, text) { super(text); this.status = status; }
}

// Return the answer to a request. Throws Failed, and an AbortError if `signal` aborts the request.
export async function ask(path, { method = "GET", body, headers = {}, signal } = {}) {
  let answer;
  try {
    answer = await fetch(path, { method, body, signal, cache: "no-store", credentials: "omit", redirect: "error",
      headers: token ? { ...headers, authorization: `Bearer ${token}` } : headers });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Failed(0, "The server does not answer.");
  }
  if (answer.status === 401) document.dispatchEvent(new Event("token-needed"));
  if (!answer.ok) throw new Failed(answer.status, await errorOf(answer));
  return answer;
}

async function errorOf(answer) {
  const text = await answer.text();
  try {
    const { error } = JSON.parse(text);
    return String(error?.message ?? error);
  } catch { return text || `Status ${answer.status}`; }
}

export const askJson = async (path, options) => (await ask(path, options)).json();
export const postJson = (path, document_, signal) =>
  ask(path, { method: "POST", body: JSON.stringify(document_), headers: { "content-type": "application/json" }, signal });

// Yield the JSON documents of a stream of server-sent events.
export async function* events(answer) {
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      const parts = (rest + value).split("\n\n");
      rest = parts.pop();
      for (const part of parts) {
        const text = part.split("\n").filter((line) => line.startsWith("data: ")).map((line) => line.slice(6)).join("\n");
        if (text === "[DONE]") return;
        if (text) yield JSON.parse(text);
      }
    }
  } finally { reader.cancel().catch(() => {}); }
}

// --- formatting ---

export const count = (n) => n.toLocaleString("en");
export function time(ms) {
  if (ms === undefined || ms === null) return "";
  return ms < 1 ? `${Math.round(ms * 1000)} µs` : ms < 1000 ? `${ms.toPrecision(3)} ms` : `${(ms / 1000).toPrecision(3)} s`;
}
export const rate = (n) => (n < 100 ? n.toPrecision(3) : count(Math.round(n)));
export function size(bytes) {
  if (bytes < 1024) return `${bytes} bytes`;
  const units = ["KiB", "MiB", "GiB"];
  let number = bytes / 1024, unit = 0;
  while (number >= 1024 && unit < 2) { number /= 1024; unit++; }
  return `${number.toFixed(1)} ${units[unit]}`;
}

// Create a button that runs `work`, is disabled meanwhile, and shows an error of `work` in the element `place`.
export function doing(text, place, work, more = {}) {
  const button = make("button", { type: "button", ...more, click: async () => {
    button.disabled = true;
    show(place);
    try { await work(); } catch (error) { if (error.name !== "AbortError") show(place, error.message); }
    button.disabled = false;
  } }, text);
  return button;
}
export const problem = () => make("p", { class: "problem", role: "alert", hidden: true });
export function show(place, text = "") {
  place.hidden = !text;
  setText(place, text);
}
