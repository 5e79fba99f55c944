// Viewer of /openapi.json: for each path its request, its answers, and a form to send a request.

import { ask, askJson, doing, make, problem, table } from "./common.js";

export async function operations() {
  const api = await askJson("/openapi.json"), groups = new Map(api.tags.map(({ name }) => [name, []]));
  for (const [path, methods] of Object.entries(api.paths))
    for (const [method, one] of Object.entries(methods)) groups.get(one.tags[0]).push({ path, method: method.toUpperCase(), ...one });
  const link = make("button", { type: "button", click: () => {
    const found = make("a", { href: URL.createObjectURL(new Blob([JSON.stringify(api, null, 1)])), download: "openapi.json" });
    found.click();
    setTimeout(() => URL.revokeObjectURL(found.href), 60_000);
  } }, "Save openapi.json");
  return make("div", {}, make("p", {}, api.info.description, " ", link),
    [...groups].map(([name, all]) => make("section", {}, make("h2", {}, name), all.map((one) => operation(api, one)))));
}

// Resolve a $ref of the document.
const resolved = (api, one) => (one?.$ref ? one.$ref.slice(2).split("/").reduce((place, key) => place[key], api) : one);

function operation(api, one) {
  const details = make("details", { class: "operation" }, make("summary", {},
    make("span", { class: `method ${one.method.toLowerCase()}` }, one.method), make("code", {}, one.path), make("span", { class: "soft" }, one.summary)));
  // Create the details when they are first opened, because there are dozens of operations.
  details.addEventListener("toggle", () => { if (details.childElementCount === 1) details.append(body(api, one)); });
  return details;
}

function body(api, one) {
  const made = make("div", { class: "inside" });
  if (one.description) made.append(make("p", {}, one.description));
  for (const [kind, { schema }] of Object.entries(one.requestBody?.content ?? {})) made.append(make("h3", {}, `Request, ${kind}`), schemaTable(api, schema));
  for (const [status, answer] of Object.entries(one.responses)) {
    const { description, content = {} } = resolved(api, answer);
    made.append(make("h3", {}, status === "default" ? "Error" : `Status ${status}`), make("p", { class: "soft" }, description));
    const json = content["application/json"]?.schema;
    if (json) made.append(schemaTable(api, json));
  }
  if (!one.requestBody?.content["multipart/form-data"]) made.append(tryout(api, one));
  return made;
}

// Return a table of a schema's fields, with nested fields below their parent.
function schemaTable(api, schema) {
  const rows = [];
  const walk = (part, name, required, depth, seen) => {
    const found = resolved(api, part), inner = found.anyOf ? resolved(api, found.anyOf[0]) : found;
    const item = inner.type === "array" ? resolved(api, inner.items) : inner;
    const kind = item.enum ? item.enum.join(", ") : item.type ?? "any";
    if (name !== null) {
      const text = `${inner.type === "array" ? "array of " : ""}${kind}${found.anyOf ? " or null" : ""}`;
      rows.push([make("code", { class: `depth${Math.min(depth, 4)}` }, name), text, required ? "required" : "", found.description ?? inner.description ?? item.description ?? ""]);
    }
    if (seen.includes(item)) return;
    for (const [field, value] of Object.entries(item.properties ?? {})) walk(value, field, item.required?.includes(field), depth + (name !== null), [...seen, item]);
  };
  walk(schema, null, false, 0, []);
  const found = resolved(api, schema);
  return rows.length ? table(["field", "type", "", ""], rows, { class: "small" }) : make("p", { class: "soft" }, found.description ?? found.type ?? "");
}

const SHOWN = 20_000;

function tryout(api, one) {
  const fields = (one.parameters ?? []).map((part) => {
    const { name, description } = resolved(api, part);
    return { name, input: make("input", { required: true, "aria-label": `${name} of ${one.path}`, placeholder: `${name}: ${description}` }) };
  });
  const example = one.requestBody?.content["application/json"]?.example;
  const text = one.requestBody && make("textarea", { rows: 6, spellcheck: "false", "aria-label": `Body of ${one.path}` });
  if (text) text.value = JSON.stringify(example ?? {}, null, 1);
  const failed = problem(), answer = make("pre", { class: "answer", hidden: true, "aria-live": "polite" });
  const send = doing("Send", failed, async () => {
    answer.hidden = true;
    let path = one.path;
    for (const { name, input } of fields) {
      if (!input.value) throw new Error(`${name} is missing.`);
      path = path.replace(`{${name}}`, encodeURIComponent(input.value));
    }
    const found = await ask(path, { method: one.method, ...(text && { body: text.value, headers: { "content-type": "application/json" } }) });
    const whole = await found.text();
    let shown = whole;
    if (found.headers.get("content-type")?.startsWith("application/json")) shown = JSON.stringify(JSON.parse(whole), null, 1);
    answer.textContent = `Status ${found.status}\n${shown.slice(0, SHOWN)}${shown.length > SHOWN ? "\n…" : ""}`;
    answer.hidden = false;
  });
  return make("div", { class: "tryout" }, make("h3", {}, "Send a request"), fields.map(({ input }) => input), text, make("p", {}, send), failed, answer);
}
