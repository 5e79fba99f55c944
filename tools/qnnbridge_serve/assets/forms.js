// Forms to try a model, one for each kind of model. Each function returns the element to show.

import { ask, askJson, choice, count, doing, events, make, postJson, problem, rate, setText, show, table, time } from "./common.js";
import { SCALES, TYPES, answerOf, fromFile, fromPixels, fromText, madeUp, pictureLayout, requestOf, toNpy } from "./tensors.js";

export const FORMS = {
  "tensor model": tensorForm,
  "language model": chatForm,
  "embedding model": embeddingForm,
  "speech model": speechForm,
};

const shapeText = (shape) => (shape.length ? shape.map((n) => (n === -1 ? "free" : n)).join(" × ") : "one value");

// --- tensors ---

async function tensorForm(name) {
  const model = await askJson(`/v2/models/${encodeURIComponent(name)}`);
  const inputs = model.inputs.map(inputFields), failed = problem(), results = make("div", { class: "results", "aria-live": "polite" });
  const run = doing("Run", failed, async () => {
    results.replaceChildren();
    const given = await Promise.all(inputs.map(async (input) => {
      try { return { name: input.name, ...(await input.tensor()) }; } catch (error) { throw new Error(`${input.name}: ${error.message}`); }
    }));
    const { body, size: head } = requestOf(given), begun = performance.now();
    const answer = await ask(`/v2/models/${encodeURIComponent(name)}/infer`, { method: "POST", body, headers: { "inference-header-content-length": head } });
    const buffer = await answer.arrayBuffer(), took = performance.now() - begun;
    const outputs = answerOf(buffer, Number(answer.headers.get("inference-header-content-length") ?? buffer.byteLength));
    results.append(make("p", { class: "soft" }, `answered in ${time(took)}, including the transfer in both directions`), ...outputs.map(outputShown));
  }, { class: "main" });
  return make("div", {}, inputs.map((input) => input.element), make("p", {}, run), failed, results);
}

// Return the form fields of one input, and a function that returns the tensor of their values.
function inputFields({ name, datatype, shape }) {
  const layout = pictureLayout(datatype, shape);
  const how = choice([...(layout ? [["picture", "a picture"]] : []), ["random", "random values"], ["zeros", "zeros"], ["ones", "ones"],
    ["text", "values as JSON"], ["file", "a file (.npy, .json)"]], { "aria-label": `Values of ${name}` });
  // Suggest a size for free dimensions: 224 for the sides of a picture, else 1.
  const guess = (k) => (layout && shape.length - k <= (layout.first ? 2 : 3) ? 224 : 1);
  const sizes = shape.map((n, k) => make("input", { type: "number", min: 0, value: n === -1 ? guess(k) : n, readonly: n !== -1, "aria-label": `Size ${k + 1} of ${name}` }));
  const text = make("textarea", { rows: 3, spellcheck: "false", placeholder: datatype === "BYTES" ? '["a text"]' : "[1, 2, 3]", "aria-label": `Values of ${name} as JSON` });
  const file = make("input", { type: "file", accept: ".npy,.json", "aria-label": `File for ${name}` });
  const picture = layout && pictureFields(name, datatype);
  const parts = { text: [text], file: [file], picture: picture ? [picture.element] : [] };
  const place = make("div", {});
  const chosen = () => { place.replaceChildren(...(parts[how.value] ?? [])); };
  how.addEventListener("change", chosen);
  chosen();
  const element = make("fieldset", {},
    make("legend", {}, name), make("span", { class: "soft" }, `${datatype}, ${shapeText(shape)} `),
    make("div", { class: "row" }, how, sizes.length ? make("span", { class: "sizes" }, sizes.flatMap((field, k) => (k ? [" × ", field] : [field]))) : []), place);
  const tensor = async () => {
    const wanted = sizes.map((field) => (field.value === "" ? NaN : Number(field.value)));
    if (how.value === "text") return fromText(datatype, wanted, text.value);
    if (how.value === "file") {
      if (!file.files.length) throw new Error("Choose a file.");
      return fromFile(datatype, wanted, file.files[0]);
    }
    if (how.value === "picture") return picture.tensor(wanted, layout);
    return madeUp(datatype, wanted, how.value);
  };
  return { name, element, tensor };
}

function pictureFields(name, datatype) {
  const file = make("input", { type: "file", accept: "image/*", "aria-label": `Picture for ${name}` });
  const usual = { UINT8: ["bytes"], INT8: ["shifted"] }[datatype] ?? ["unit", "signed", "imagenet", "bytes"];
  const scale = choice(usual.map((key) => [key, SCALES[key][0]]), { "aria-label": `Scale of ${name}` });
  const fit = choice([["cut", "cropped to the center"], ["stretch", "stretched"]], { "aria-label": `Fit of ${name}` });
  const canvas = make("canvas", { class: "preview", hidden: true, role: "img", "aria-label": `Picture that ${name} receives` });
  const tensor = async (shape, layout) => {
    if (!file.files.length) throw new Error("Choose a picture.");
    const [height, width] = layout.first ? shape.slice(-2) : shape.slice(-3, -1);
    if (!(width > 0 && height > 0 && width * height <= 2 ** 24)) throw new Error("The size of the picture is missing or too large.");
    let found;
    try { found = await createImageBitmap(file.files[0]); } catch { throw new Error(`${file.files[0].name} is not a picture that this browser can read.`); }
    canvas.width = width;
    canvas.height = height;
    const pen = canvas.getContext("2d", { willReadFrequently: true });
    pen.imageSmoothingQuality = "high";
    // White background for transparent pictures.
    pen.fillStyle = "#ffffff";
    pen.fillRect(0, 0, width, height);
    const ratio = fit.value === "cut" ? Math.max(width / found.width, height / found.height) : 0;
    const w = ratio ? found.width * ratio : width, h = ratio ? found.height * ratio : height;
    pen.drawImage(found, (width - w) / 2, (height - h) / 2, w, h);
    canvas.hidden = false;
    return fromPixels(datatype, shape, layout, pen.getImageData(0, 0, width, height).data, scale.value);
  };
  return { element: make("div", { class: "row" }, file, scale, fit, canvas), tensor };
}

const SHOWN = 32;
const number = (value) => (typeof value === "number" && !Number.isInteger(value) ? String(Number(value.toPrecision(6))) : String(value));

function outputShown({ name, datatype, shape, bytes, values }) {
  const facts = [`${datatype}, ${shapeText(shape)}`];
  if (datatype !== "BYTES" && values.length > 1) facts.push(rangeOf(values));
  const listed = [...values.slice(0, SHOWN)].map((value) => (datatype === "BYTES" ? JSON.stringify(value) : datatype === "BOOL" ? String(value === 1) : number(value)));
  const shown = make("section", { class: "output" }, make("h3", {}, name), make("p", { class: "soft" }, facts.join("; ")),
    make("pre", {}, listed.join(", ") + (values.length > SHOWN ? ", …" : "")));
  // A single row of floats often contains scores.
  if (TYPES[datatype]?.float && values.length > 4 && shape.at(-1) === values.length) shown.append(largestOf(values));
  if (TYPES[datatype]) {
    shown.append(make("button", { type: "button", click: () => {
      const link = make("a", { href: URL.createObjectURL(toNpy({ datatype, shape, bytes })), download: `${name.replace(/[^\w.-]+/g, "_")}.npy` });
      link.click();
      setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
    } }, "Save as .npy"));
  }
  return shown;
}

function rangeOf(values) {
  let least = values[0], most = values[0], odd = 0;
  for (const value of values) {
    if (Number.isNaN(value)) odd++;
    else {
      if (value < least || Number.isNaN(least)) least = value;
      if (value > most || Number.isNaN(most)) most = value;
    }
  }
  return `${number(least)} to ${number(most)}${odd ? `; ${count(odd)} values are NaN` : ""}`;
}

function largestOf(values) {
  const best = [];
  values.forEach((value, k) => {
    if (best.length < 5 || value > best[4][1]) {
      best.push([k, value]);
      best.sort((a, b) => b[1] - a[1]);
      best.length = Math.min(best.length, 5);
    }
  });
  return table(["index", "largest values"], best.map(([k, value]) => [String(k), number(value)]), { class: "small" });
}

// --- chat ---

function chatForm(name) {
  let messages = [];
  const failed = problem(), log = make("div", { class: "chat", role: "log", "aria-label": "Conversation" });
  const said = make("textarea", { rows: 2, placeholder: "Message", "aria-label": "Message" });
  const most = make("input", { type: "number", min: 1, class: "broad", placeholder: "all that fit", "aria-label": "Maximum tokens" });
  const warmth = make("input", { type: "number", min: 0, max: 2, step: 0.1, class: "broad", placeholder: "model's default", "aria-label": "Temperature" });
  const facts = make("p", { class: "soft" });
  let stopping = null;
  const bubble = (role, text) => log.appendChild(make("div", { class: `message ${role}` }, text));

  const send = doing("Send", failed, async () => {
    const text = said.value.trim();
    if (!text) return;
    said.value = "";
    // Keep this conversation's list: "New conversation" replaces `messages`.
    const conversation = messages;
    conversation.push({ role: "user", content: text });
    const mine = bubble("user", text), place = bubble("assistant", ""), begun = performance.now();
    stopping = new AbortController();
    stop.hidden = false;
    let first = 0, whole = "";
    try {
      const asked = { model: name, messages: conversation, stream: true, stream_options: { include_usage: true },
        ...(most.value && { max_completion_tokens: Number(most.value) }), ...(warmth.value && { temperature: Number(warmth.value) }) };
      for await (const part of events(await postJson("/v1/chat/completions", asked, stopping.signal))) {
        if (part.error) throw new Error(part.error.message);
        const piece = part.choices?.[0]?.delta?.content ?? "";
        if (piece) {
          first ||= performance.now();
          whole += piece;
          place.append(piece);
          log.scrollTop = log.scrollHeight;
        }
        if (part.usage) setText(facts, usageText(part.usage, first - begun, performance.now() - first));
      }
    } catch (error) {
      // A stopped answer stays in the conversation. If no answer began, remove the question, so that it can be sent again.
      if (!whole) {
        conversation.pop();
        mine.remove();
        said.value ||= text;
      }
      throw error;
    } finally {
      stop.hidden = true;
      if (whole) conversation.push({ role: "assistant", content: whole });
      else place.remove();
    }
  }, { class: "main" });
  const stop = make("button", { type: "button", hidden: true, click: () => stopping?.abort() }, "Stop");
  const anew = make("button", { type: "button", click: () => {
    stopping?.abort();
    messages = [];
    log.replaceChildren();
    setText(facts, "");
  } }, "New conversation");
  said.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      send.click();
    }
  });
  return make("div", {}, log, said, make("div", { class: "row" }, send, stop, anew,
    make("label", {}, "Maximum tokens ", most), make("label", {}, "Temperature ", warmth)), facts, failed);
}

function usageText({ prompt_tokens, completion_tokens, prompt_tokens_details }, first, rest) {
  const again = prompt_tokens_details?.cached_tokens ? `, ${prompt_tokens_details.cached_tokens} of them reused` : "";
  const pace = completion_tokens > 1 && rest > 0 ? `, ${rate(((completion_tokens - 1) / rest) * 1000)} tokens per second` : "";
  return `${prompt_tokens} tokens read${again}; ${completion_tokens} written; first token after ${time(first)}${pace}`;
}

// --- embeddings ---

function embeddingForm(name) {
  const texts = make("textarea", { rows: 4, placeholder: "One text on each line", "aria-label": "Texts" }), failed = problem();
  const results = make("div", { class: "results", "aria-live": "polite" });
  const run = doing("Embed", failed, async () => {
    results.replaceChildren();
    const given = texts.value.split("\n").filter((line) => line.trim());
    if (!given.length) throw new Error("Enter a text.");
    const begun = performance.now(), found = await (await postJson("/v1/embeddings", { model: name, input: given })).json();
    const vectors = found.data.map((one) => one.embedding);
    results.append(make("p", { class: "soft" }, `${vectors[0].length} numbers for each text, ${time(performance.now() - begun)}`));
    results.append(table(["similarity", ...given.map((_, k) => `${k + 1}`)],
      given.map((text, k) => [`${k + 1}: ${text}`, ...vectors.map((other) => cosine(vectors[k], other).toFixed(3))]), { class: "small" }));
  }, { class: "main" });
  return make("div", {}, texts, make("p", {}, run), failed, results);
}

function cosine(a, b) {
  const product = (x, y) => x.reduce((sum, value, k) => sum + value * y[k], 0);
  return product(a, b) / Math.sqrt(product(a, a) * product(b, b)) || 0;
}

// --- speech ---

const RATE = 16000;

function speechForm(name) {
  const failed = problem(), file = make("input", { type: "file", accept: "audio/*,.wav,.flac,.ogg,.mp3", "aria-label": "Audio" });
  const player = make("audio", { controls: true, hidden: true });
  const language = make("input", { size: 6, placeholder: "detected", "aria-label": "Language" });
  const english = make("input", { type: "checkbox" });
  const results = make("div", { class: "results", "aria-live": "polite" });
  let sound = null, recorder = null;
  const take = (blob, title) => {
    sound = blob && { blob, title };
    URL.revokeObjectURL(player.src);
    player.hidden = !blob;
    if (blob) player.src = URL.createObjectURL(blob);
  };
  file.addEventListener("change", () => take(file.files[0], file.files[0]?.name));
  // Browsers allow recording only on pages of this machine and on https pages.
  const record = doing("Record", failed, async () => {
    if (recorder) {
      recorder.stop();
      return;
    }
    if (!navigator.mediaDevices) throw new Error("This browser allows recording only on https pages and on pages of its own machine. Choose a file.");
    const stream = await navigator.mediaDevices.getUserMedia({ audio: true }).catch(() => { throw new Error("There is no microphone, or the browser does not allow this page to use it."); });
    const pieces = [];
    recorder = new MediaRecorder(stream);
    recorder.ondataavailable = ({ data }) => pieces.push(data);
    recorder.onstop = async () => {
      stream.getTracks().forEach((track) => track.stop());
      recorder = null;
      setText(record, "Record");
      file.value = "";
      try { take(await toWav(new Blob(pieces)), "recording.wav"); } catch (error) { show(failed, error.message); }
    };
    recorder.start();
    setText(record, "Stop recording");
  });
  const run = doing("Transcribe", failed, async () => {
    results.replaceChildren();
    if (!sound) throw new Error("Choose a file, or record something.");
    const form = new FormData();
    form.append("model", name);
    form.append("response_format", "verbose_json");
    if (language.value.trim()) form.append("language", language.value.trim());
    form.append("file", sound.blob, sound.title);
    const begun = performance.now(), path = english.checked ? "/v1/audio/translations" : "/v1/audio/transcriptions";
    const found = await (await ask(path, { method: "POST", body: form })).json();
    results.append(make("p", { class: "transcript" }, found.text || "(no speech)"),
      make("p", { class: "soft" }, `${found.language}; ${found.duration.toFixed(1)} s of audio in ${time(performance.now() - begun)}`));
    if (found.segments.length) {
      results.append(table(["from", "to", "text"], found.segments.map((one) => [one.start.toFixed(2), one.end.toFixed(2), one.text]), { class: "small" }));
    }
  }, { class: "main" });
  return make("div", {}, make("div", { class: "row" }, file, record, player), make("div", { class: "row" }, run,
    make("label", {}, "Language ", language), make("label", {}, english, " translate into English")), failed, results);
}

// Convert the browser's recording to a WAV file with PCM, 16 kHz and one channel, which every server can read.
async function toWav(blob) {
  const sound = await new OfflineAudioContext(1, 1, RATE).decodeAudioData(await blob.arrayBuffer());
  const channels = Array.from({ length: sound.numberOfChannels }, (_, k) => sound.getChannelData(k));
  const view = new DataView(new ArrayBuffer(44 + 2 * sound.length));
  const word = (at, text) => [...text].forEach((letter, k) => view.setUint8(at + k, letter.charCodeAt(0)));
  word(0, "RIFF"); view.setUint32(4, 36 + 2 * sound.length, true); word(8, "WAVEfmt "); view.setUint32(16, 16, true);
  view.setUint16(20, 1, true); view.setUint16(22, 1, true); view.setUint32(24, RATE, true); view.setUint32(28, 2 * RATE, true);
  view.setUint16(32, 2, true); view.setUint16(34, 16, true); word(36, "data"); view.setUint32(40, 2 * sound.length, true);
  for (let k = 0; k < sound.length; k++) {
    const mean = channels.reduce((sum, one) => sum + one[k], 0) / channels.length;
    view.setInt16(44 + 2 * k, Math.max(-32768, Math.min(32767, Math.round(mean * 32767))), true);
  }
  return new Blob([view], { type: "audio/wav" });
}
