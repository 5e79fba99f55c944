// Tensors of the Open Inference Protocol: create them from generated values, files and pictures; write requests; read answers.

const float = (exponent, mantissa) => ({ bytes: 2, array: Uint16Array, exponent, mantissa, float: true });
// For each datatype: bytes of an element, the array type for its values, and numpy's name of the type in a .npy file.
export const TYPES = {
  BOOL: { bytes: 1, array: Uint8Array, npy: "|b1" },
  UINT8: { bytes: 1, array: Uint8Array, npy: "|u1" }, INT8: { bytes: 1, array: Int8Array, npy: "|i1" },
  UINT16: { bytes: 2, array: Uint16Array, npy: "<u2" }, INT16: { bytes: 2, array: Int16Array, npy: "<i2" },
  UINT32: { bytes: 4, array: Uint32Array, npy: "<u4" }, INT32: { bytes: 4, array: Int32Array, npy: "<i4" },
  UINT64: { bytes: 8, array: BigUint64Array, npy: "<u8" }, INT64: { bytes: 8, array: BigInt64Array, npy: "<i8" },
  FP16: { ...float(5, 10), npy: "<f2" }, BF16: { ...float(8, 7), npy: "<V2" },
  FP32: { bytes: 4, array: Float32Array, npy: "<f4", float: true }, FP64: { bytes: 8, array: Float64Array, npy: "<f8", float: true },
};
// Maximum number of elements: with more, the page would not respond for seconds.
const MOST = 2 ** 26;

export const elements = (shape) => shape.reduce((product, n) => product * n, 1);

function checkSize(shape) {
  if (!shape.every((n) => Number.isSafeInteger(n) && n >= 0)) throw new Error("A size is missing, or is not a whole number.");
  if (elements(shape) > MOST) throw new Error(`[${shape}] has more than ${MOST} elements, which is too many for this page.`);
}

// --- 16-bit floats ---

// Return the bits of the nearest 16-bit float; a tie rounds to even. `number` has 64 bits, so it is rounded only once.
export function toBits(number, { exponent, mantissa }) {
  const bias = 2 ** (exponent - 1) - 1, sign = number < 0 || Object.is(number, -0) ? 0x8000 : 0, most = (2 ** exponent - 1) << mantissa;
  if (Number.isNaN(number)) return most | (1 << (mantissa - 1));
  const value = Math.abs(number);
  if (value === 0) return sign;
  if (value === Infinity) return sign | most;
  let power = Math.max(Math.floor(Math.log2(value)), 1 - bias);
  // Next to a power of two, the rounded log2 can be wrong by one.
  if (2 ** power > value && power > 1 - bias) power--;
  else if (2 ** (power + 1) <= value) power++;
  const scaled = value / 2 ** (power - mantissa), whole = Math.floor(scaled), rest = scaled - whole;
  const rounded = whole + (rest > 0.5 || (rest === 0.5 && whole % 2) ? 1 : 0);
  // A mantissa rounded up to the next power of two carries into the exponent, also for subnormal numbers.
  return sign | Math.min(((power + bias - 1) << mantissa) + rounded, most);
}

export function fromBits(bits, { exponent, mantissa }) {
  const bias = 2 ** (exponent - 1) - 1, sign = bits & 0x8000 ? -1 : 1;
  const power = (bits >> mantissa) & (2 ** exponent - 1), part = bits & (2 ** mantissa - 1);
  if (power === 2 ** exponent - 1) return part ? NaN : sign * Infinity;
  return sign * (power ? part + 2 ** mantissa : part) * 2 ** ((power || 1) - bias - mantissa);
}

// --- tensors for a request: { datatype, shape, bytes } or { datatype, shape, text } with JSON ---

const bytesOf = (array) => new Uint8Array(array.buffer, array.byteOffset, array.byteLength);

// number: returns the value at an index.
function filled(datatype, shape, number) {
  checkSize(shape);
  const kind = TYPES[datatype], array = new kind.array(elements(shape));
  const big = kind.bytes === 8 && !kind.float;
  for (let k = 0; k < array.length; k++) {
    const value = number(k);
    array[k] = big ? BigInt(value) : kind.exponent ? toBits(value, kind) : value;
  }
  return { datatype, shape, bytes: bytesOf(array) };
}

export function madeUp(datatype, shape, how) {
  if (datatype === "BYTES") {
    checkSize(shape);
    const texts = Array.from({ length: elements(shape) }, (_, k) => (how === "random" ? `text ${k + 1}` : how === "zeros" ? "" : "1"));
    return { datatype, shape, text: JSON.stringify(texts) };
  }
  const { bytes, float } = TYPES[datatype];
  // Most integer inputs are masks or indices; 0 and 1 are valid for both.
  const random = float ? Math.random : bytes === 1 && datatype !== "BOOL" ? () => Math.floor(Math.random() * 128) : () => Math.floor(Math.random() * 2);
  return filled(datatype, shape, how === "random" ? random : () => (how === "ones" ? 1 : 0));
}

// text: JSON with numbers or strings, nested or flat. The text is sent unchanged, so that 64-bit integers are not rounded.
export function fromText(datatype, shape, text) {
  let found;
  // JSON has neither NaN nor Infinity, but the server accepts them.
  const plain = datatype === "BYTES" ? text : text.replace(/\bNaN\b|-?\bInfinity\b/g, "0");
  try { found = JSON.parse(plain); } catch (error) { throw new Error(`The text is not valid JSON: ${error.message}`); }
  if (!Array.isArray(found)) { found = [found]; text = `[${text}]`; }
  const nested = [];
  for (let level = found; Array.isArray(level); level = level[0]) nested.push(level.length);
  if (nested.length > 1 || shape.length === 1) shape = nested;
  checkSize(shape);
  if (TYPES[datatype]?.exponent === undefined) return { datatype, shape, text };
  const words = JSON.parse(text.replace(/\bNaN\b|-?\bInfinity\b/g, '"$&"')).flat(Infinity);
  if (words.length !== elements(shape)) throw new Error(`The shape [${shape}] has ${elements(shape)} elements, but the text has ${words.length}.`);
  if (words.some((word) => typeof word !== "number" && !["NaN", "Infinity", "-Infinity"].includes(word))) throw new Error(`${datatype} accepts numbers only.`);
  return filled(datatype, shape, (k) => Number(words[k]));
}

export async function fromFile(datatype, shape, file) {
  if (/\.json$/i.test(file.name)) return fromText(datatype, shape, await file.text());
  if (/\.npy$/i.test(file.name)) return fromNpy(datatype, new Uint8Array(await file.arrayBuffer()), file.name);
  throw new Error(`${file.name} is neither a .npy nor a .json file.`);
}

export function fromNpy(datatype, file, name = "The file") {
  const view = new DataView(file.buffer, file.byteOffset, file.byteLength);
  const magic = [0x93, 0x4e, 0x55, 0x4d, 0x50, 0x59];
  if (file.length < 10 || magic.some((byte, k) => file[k] !== byte)) throw new Error(`${name} was not written by numpy.save.`);
  const begin = file[6] === 1 ? 10 : 12, end = begin + (file[6] === 1 ? view.getUint16(8, true) : view.getUint32(8, true));
  const head = new TextDecoder().decode(file.subarray(begin, end));
  const descr = /'descr':\s*'([^']+)'/.exec(head)?.[1], fortran = /'fortran_order':\s*(True|False)/.exec(head)?.[1];
  const sizes = /'shape':\s*\(([^)]*)\)/.exec(head)?.[1];
  if (descr === undefined || fortran === undefined || sizes === undefined) throw new Error(`${name} contains records or objects, which no model accepts.`);
  const shape = sizes.split(",").map((text) => text.trim()).filter(Boolean).map(Number);
  const kind = TYPES[datatype];
  if (kind === undefined) throw new Error("Strings need a .json file.");
  if (descr.slice(1) !== kind.npy.slice(1)) throw new Error(`${name} contains ${descr}, but the model needs ${datatype} (${kind.npy}). Convert the array with numpy's astype.`);
  if (fortran === "True" && shape.length > 1) throw new Error(`${name} is stored in column order. Save numpy.ascontiguousarray(x) instead.`);
  checkSize(shape);
  const bytes = file.slice(end);
  if (bytes.length !== elements(shape) * kind.bytes) throw new Error(`${name} is truncated: [${shape}] has ${elements(shape) * kind.bytes} bytes, but the file has ${bytes.length}.`);
  if (descr[0] === ">") for (let k = 0; k < bytes.length; k += kind.bytes) bytes.subarray(k, k + kind.bytes).reverse();
  return { datatype, shape, bytes };
}

// --- pictures ---

// Return the layout of a picture in an input of this shape; null if the input does not accept pictures. -1 is a free size.
export function pictureLayout(datatype, shape) {
  if (!(TYPES[datatype]?.float || ["UINT8", "INT8"].includes(datatype)) || shape.length < 3 || shape.length > 4) return null;
  const [a, , b] = shape.slice(-3), side = (n) => n === -1 || n >= 8;
  const rest = shape.slice(-3);
  if ((a === 3 || a === 1) && side(rest[1]) && side(rest[2])) return { first: true, channels: a };
  if ((b === 3 || b === 1) && side(rest[0]) && side(rest[1])) return { first: false, channels: b };
  return null;
}

const MEAN = [0.485, 0.456, 0.406], SPREAD = [0.229, 0.224, 0.225];
// Conversions of a channel's value from 0 to 255: label and function.
export const SCALES = {
  unit: ["0 to 1", (v) => v / 255],
  signed: ["-1 to 1", (v) => v / 127.5 - 1],
  imagenet: ["mean and standard deviation of ImageNet", (v, c) => (v / 255 - MEAN[c]) / SPREAD[c]],
  bytes: ["0 to 255", (v) => v],
  shifted: ["-128 to 127", (v) => v - 128],
};

// rgba: width times height pixels. A batch contains the same picture several times.
export function fromPixels(datatype, shape, { first, channels }, rgba, scale) {
  const [height, width] = first ? shape.slice(-2) : shape.slice(-3, -1), area = width * height, one = area * channels;
  const change = SCALES[scale][1], whole = !TYPES[datatype].float;
  return filled(datatype, shape, (k) => {
    const at = k % one, pixel = first ? at % area : Math.floor(at / channels), channel = first ? Math.floor(at / area) : at % channels;
    const value = channels === 3 ? rgba[4 * pixel + channel] : 0.299 * rgba[4 * pixel] + 0.587 * rgba[4 * pixel + 1] + 0.114 * rgba[4 * pixel + 2];
    const changed = change(value, channel);
    return whole ? Math.round(changed) : changed;
  });
}

// --- requests and answers ---

// Return the body of a request and the size of its JSON part. inputs: tensors with names.
export function requestOf(inputs) {
  const heads = inputs.map(({ name, datatype, shape, bytes, text }) => {
    const front = JSON.stringify({ name, datatype, shape }).slice(0, -1);
    return bytes ? `${front},"parameters":{"binary_data_size":${bytes.length}}}` : `${front},"data":${text}}`;
  });
  const head = new TextEncoder().encode(`{"inputs":[${heads}],"parameters":{"binary_data_output":true}}`);
  return { body: new Blob([head, ...inputs.flatMap(({ bytes }) => (bytes ? [bytes] : []))]), size: head.length };
}

// Return the outputs of an answer: { name, datatype, shape, bytes, values }.
export function answerOf(buffer, size) {
  const head = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 0, size)));
  let at = size;
  return head.outputs.map(({ name, datatype, shape, parameters }) => {
    const bytes = new Uint8Array(buffer.slice(at, at + parameters.binary_data_size));
    at += parameters.binary_data_size;
    return { name, datatype, shape, bytes, values: valuesOf(datatype, bytes) };
  });
}

function valuesOf(datatype, bytes) {
  if (datatype === "BYTES") {
    const found = [], view = new DataView(bytes.buffer);
    for (let at = 0; at < bytes.length;) {
      const length = view.getUint32(at, true);
      found.push(new TextDecoder().decode(bytes.subarray(at + 4, at + 4 + length)));
      at += 4 + length;
    }
    return found;
  }
  const kind = TYPES[datatype], values = new kind.array(bytes.buffer);
  return kind.exponent ? Float32Array.from(values, (bits) => fromBits(bits, kind)) : values;
}

// Return a file for numpy.load. numpy has no type for BF16, so its bytes are kept.
export function toNpy({ datatype, shape, bytes }) {
  const head = `{'descr': '${TYPES[datatype].npy}', 'fortran_order': False, 'shape': (${shape.map((n) => `${n},`).join(" ")}), }`;
  const padded = head.padEnd(Math.ceil((head.length + 11) / 64) * 64 - 11) + "\n";
  const front = new Uint8Array(10 + padded.length);
  front.set([0x93, 0x4e, 0x55, 0x4d, 0x50, 0x59, 1, 0, padded.length & 255, padded.length >> 8]);
  front.set(new TextEncoder().encode(padded), 10);
  return new Blob([front, bytes]);
}
