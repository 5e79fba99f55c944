// The page: the token, the tabs, the status (read every two seconds), and the form of the chosen model.

import { $, Failed, ask, askJson, count, doing, hasToken, keepToken, make, problem, postJson, rate, setText, show, size, table, time } from "./common.js";
import { FORMS } from "./forms.js";
import { operations } from "./operations.js";

const EVERY_MS = 2000;
const TABS = ["models", "host", "metrics", "api"];
let status = null, timer = null;

// --- addresses within the page: #models, #models/KIND/NAME, #host, #metrics, #api ---

// The key contains the kind, because models of different kinds may have the same name.
const key = ({ kind, name }) => `${encodeURIComponent(kind)}/${encodeURIComponent(name)}`;

function place() {
  const [tab, ...model] = location.hash.slice(1).split("/");
  return { tab: TABS.includes(tab) ? tab : "models", model: model.join("/") };
}

function showTab() {
  for (const name of TABS) $(name).hidden = !$("enter").hidden || name !== place().tab;
}

function showPlace() {
  const { tab } = place(), open = $("enter").hidden;
  showTab();
  for (const link of document.querySelectorAll("nav a")) {
    if (link.hash === `#${tab}`) link.setAttribute("aria-current", "page"); else link.removeAttribute("aria-current");
  }
  if (!open) return;
  if (tab === "models") showForm();
  if (tab === "metrics") readMetrics();
  if (tab === "api") showOperations();
}

// --- the token ---

function askForToken() {
  const first = $("enter").hidden;
  $("enter").hidden = false;
  $("forget").hidden = true;
  if (hasToken()) { show($("problem"), "The token is wrong."); keepToken(""); }
  showPlace();
  if (first) $("token").focus();
}
document.addEventListener("token-needed", askForToken);
$("enter").addEventListener("submit", (event) => {
  event.preventDefault();
  const text = $("token").value.trim();
  $("token").value = "";
  // An HTTP header cannot contain other characters.
  if (!/^[\x21-\x7e]+$/.test(text)) { show($("problem"), "A token contains only ASCII letters, digits and signs, no spaces."); return; }
  keepToken(text);
  show($("problem"));
  $("enter").hidden = true;
  read().then(showPlace);
});
$("forget").addEventListener("click", () => { keepToken(""); location.reload(); });

// --- the server's status ---

async function read() {
  try { await readOnce(); } finally {
    clearTimeout(timer);
    // Do not query the server while the page is hidden.
    timer = setTimeout(() => { if (document.hidden) document.addEventListener("visibilitychange", read, { once: true }); else read(); }, EVERY_MS);
  }
}

async function readOnce() {
  if (!$("enter").hidden) return;
  try {
    status = await askJson("/status");
    show($("problem"));
    $("forget").hidden = !hasToken();
    setText($("facts"), `version ${status.qnnbridge}, up for ${duration(status.running_s)}, memory ${size(status.server_bytes)}`);
    showModels();
    showHost();
    showForm();
    await showHealth();
  } catch (error) {
    if (error.status === 401) return;
    if (!(error instanceof Failed)) throw error;
    show($("problem"), error.message);
    setHealth("bad", "no answer");
  }
}

async function showHealth() {
  try { await ask("/v2/health/ready"); setHealth("good", "ready"); }
  catch (error) {
    if (!error.status) throw error;
    setHealth("wait", "not ready");
    $("health").title = error.message;
    return;
  }
  $("health").title = "";
}

function setHealth(kind, text) {
  $("health").className = `state ${kind}`;
  setText($("health"), text);
}

function duration(s) {
  return s < 60 ? `${Math.floor(s)} s` : s < 3600 ? `${Math.floor(s / 60)} min` : s < 86400 ? `${Math.floor(s / 3600)} h` : `${Math.floor(s / 86400)} d`;
}

// --- the models ---

// Rows of the table, by the model's key. Rows are updated instead of replaced, so that clicks and selections work.
const rows = new Map();

function showModels() {
  for (const model of status.models) {
    if (!rows.has(key(model))) {
      const row = newRow(model);
      rows.set(key(model), row);
      $("model-table").tBodies[0].append(row.element);
    }
    rows.get(key(model)).update(model);
  }
  // Remove models that a restarted server no longer has.
  for (const [one, row] of rows) if (!status.models.some((model) => key(model) === one)) { row.element.remove(); rows.delete(one); }
}

function newRow({ kind, name }) {
  const cells = Object.fromEntries(["state", "runs", "numbers", "calls", "time", "memory"].map((id) => [id, make("td")]));
  const titles = { state: "State", runs: "Runs on", numbers: "Numbers", calls: "Calls", time: "Time", memory: "NPU memory" };
  for (const [id, cell] of Object.entries(cells)) cell.dataset.title = titles[id];
  const link = make("a", { href: `#models/${key({ kind, name })}` }, name);
  const failed = problem(), state = cells.state.appendChild(make("span", { class: "state" })), reason = cells.state.appendChild(make("small"));
  const change = (what) => async () => { await postJson(`/v2/repository/models/${encodeURIComponent(name)}/${what}`, {}); await read(); };
  const load = doing("Load", failed, change("load")), unload = doing("Unload", failed, change("unload"));
  const changes = kind === "tensor model" && status.model_control ? [load, unload] : [];
  const element = make("tr", {}, make("th", { scope: "row" }, link, make("small", {}, kind)), Object.values(cells), make("td", { class: "acts" }, changes, failed));
  const update = (model) => {
    state.className = `state ${{ READY: "good", LOADING: "wait", UNLOADING: "wait" }[model.state] ?? "bad"}`;
    setText(state, model.state.toLowerCase());
    setText(reason, model.reason);
    partsShown(cells.runs, model.parts, placementText);
    // onnxruntime-genai runs the stages of a language model, so their results cannot be compared with the CPU.
    partsShown(cells.numbers, kind === "language model" ? model.parts.slice(0, 1).map(() => ({})) : model.parts, numbersText);
    setText(cells.calls, `${count(model.calls)}${model.errors ? `, ${count(model.errors)} failed` : ""}${model.running ? `, ${model.running} running` : ""}`);
    partsShown(cells.time, [model], timeText);
    const npu = model.parts.reduce((sum, part) => sum + part.placement.npu_bytes, 0);
    setText(cells.memory, npu ? size(npu) : "");
    load.textContent = model.state === "READY" ? "Load again" : "Load";
    unload.hidden = model.state !== "READY";
  };
  return { element, update };
}

// Show one line for each part of a model.
function partsShown(cell, parts, text) {
  const lines = parts.map((part) => ({ name: part.name, ...text(part) })).filter((line) => line.text);
  const now = JSON.stringify(lines);
  if (cell.dataset.now === now) return;
  cell.dataset.now = now;
  cell.replaceChildren(...lines.map((line) => make("div", { class: `line ${line.kind ?? ""}`, title: line.title },
    line.name && parts.length > 1 ? make("b", {}, `${line.name}: `) : null, line.text, line.more ? make("small", {}, line.more) : null)));
}

function placementText({ placement }) {
  if (!placement.known) return { text: "unknown" };
  const { qnn_nodes: qnn, cpu_nodes: cpu } = placement;
  const text = qnn && cpu ? `${qnn} nodes on QNN, ${cpu} on the CPU` : qnn ? `QNN, ${qnn} nodes` : cpu ? `the CPU, ${cpu} nodes` : "the CPU";
  return { text: text.replace(/\b1 nodes/, "1 node"), title: [placement.text, placement.source, placement.variant].filter(Boolean).join("; "),
    more: [placement.simulator && qnn ? "simulator" : "", placement.cause ?? ""].filter(Boolean).join("; ") };
}

function numbersText({ numbers }) {
  if (!numbers) return { text: "not compared", more: "results of stages are not available", title: "onnxruntime-genai runs the stages" };
  const kind = { agrees: "good", differs: "bad" }[numbers.state];
  const more = ["differs", "unknown"].includes(numbers.state) ? [numbers.reason, numbers.cause].filter(Boolean).join("; ") : "";
  const text = { off: "not compared", unknown: "unknown" }[numbers.state] ?? numbers.summary;
  return { text, kind, more, title: numbers.reason };
}

function timeText(model) {
  if (model.latency_ms) return { text: time(model.latency_ms.p50), more: `99 % within ${time(model.latency_ms.p99)}` };
  if (model.first_token_ms) return { text: `first token ${time(model.first_token_ms.p50)}`, more: model.tokens_per_s && `${rate(model.tokens_per_s.p50)} tokens/s` };
  return { text: "" };
}

// --- the form of the chosen model ---

let shown = "";

async function showForm() {
  const { tab, model: wanted } = place(), model = status?.models.find((one) => key(one) === wanted);
  const ready = model?.state === "READY", now = JSON.stringify([wanted, ready]), panel = $("try");
  if (!status || tab !== "models" || shown === now) return;
  shown = now;
  for (const [one, row] of rows) row.element.classList.toggle("chosen", one === wanted);
  if (!wanted) { panel.replaceChildren(make("p", { class: "soft" }, "Choose a model to try it.")); return; }
  if (!model) { panel.replaceChildren(make("p", { class: "problem" }, "This server has no such model.")); return; }
  const title = make("h2", {}, model.name);
  if (!ready) { panel.replaceChildren(title, make("p", { class: "soft" }, "You can try this model when it is loaded.")); return; }
  try {
    const form = await FORMS[model.kind](model.name);
    if (shown === now) { panel.replaceChildren(title, form); panel.scrollIntoView({ block: "nearest" }); }
  } catch (error) {
    if (shown !== now) return;
    shown = "";
    panel.replaceChildren(title, make("p", { class: "problem" }, error.message));
  }
}

// --- the host or the daemon ---

let lastHost = "";

function showHost() {
  setText($("host-tab"), status.daemon ? "Daemon" : "Host");
  const now = JSON.stringify([status.daemon ?? status.host, status.generators]);
  if (now === lastHost) return;
  lastHost = now;
  const facts = [...(status.daemon?.facts ?? hostFacts(status.host)), ...poolFacts(status.generators)], tables = status.daemon?.tables ?? [];
  $("host").replaceChildren(
    make("dl", {}, facts.flatMap(([name, text]) => [make("dt", {}, name), make("dd", {}, text)])),
    ...tables.flatMap(({ title, headers, rows: lines }) => [make("h2", {}, title), lines.length ? table(headers, lines, { class: "small" }) : make("p", { class: "soft" }, "none")]));
}

const times = (n) => (n === 1 ? "once" : n ? `${n} times` : "never");
function hostFacts(host) {
  return [["host", host.running ? "running, this server's own" : "not running"],
    ["history", `started ${times(host.starts)}, crashed ${times(host.crashes)}, replaced as planned ${times(host.planned_restarts)}`],
    ...(host.last_crash ? [["last crash", host.last_crash]] : [])];
}

function poolFacts(pool) {
  if (!pool) return [];
  return [["kept generators", `${pool.idle} idle, ${pool.in_use} in use, ${size(pool.kept_bytes)}`],
    ["reused prefixes", `${pool.hits} of ${pool.hits + pool.misses} answers, ${pool.reused_tokens} tokens`]];
}

// --- metrics and the API ---

async function readMetrics() {
  try { $("metrics-text").textContent = await (await ask("/metrics")).text(); }
  catch (error) { if (error.status !== 401) show($("problem"), error.message); }
}
$("read-metrics").addEventListener("click", readMetrics);

let operationsShown = false;
async function showOperations() {
  if (operationsShown) return;
  operationsShown = true;
  try { $("api").replaceChildren(await operations()); }
  catch (error) { operationsShown = false; if (error.status !== 401) show($("problem"), error.message); }
}

window.addEventListener("hashchange", showPlace);
showPlace();
read();
