"use strict";
// What all parts of the report share: the content, elements, numbers as text, colours of labels.

const content = JSON.parse(document.getElementById("content").textContent);
const labels = content.labels;
const byId = (id) => document.getElementById(id);

// --- elements: text is always set as text, never as markup ---------------------------------------

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (name === "text") node.textContent = value;
    else if (name === "style") for (const [k, v] of Object.entries(value)) node.style.setProperty(k, v);
    else if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value !== null && value !== undefined && value !== false) node.setAttribute(name, value);
  }
  node.append(...(children || []));
  return node;
}

const element = (tag, attributes, ...children) =>
  fill(document.createElement(tag), attributes, children);

const shape = (tag, attributes, ...children) =>
  fill(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);

function options(select, pairs) {
  select.replaceChildren(...pairs.map(([value, text]) => element("option", { value, text })));
}

// --- numbers --------------------------------------------------------------------------------------

const THIN = "\u202f";
const count = (n) => n.toLocaleString("en");
const percent = (x, digits = 1) => (x === null ? "–" : (100 * x).toFixed(digits) + THIN + "%");

function fixed(x, digits = 3) {
  if (x === null || x === undefined) return "–";
  return Number.isFinite(Number(x)) ? Number(x).toFixed(digits) : "∞";
}

// A probability: never 0 or 100 % by rounding.
function chance(p) {
  if (p > 0.999 && p < 1) return ">" + percent(0.999);
  if (p < 0.001 && p > 0) return "<" + percent(0.001);
  return percent(p);
}

const plural = (n, one, many = one + "s") => `${count(n)} ${n === 1 ? one : many}`;

// --- columns --------------------------------------------------------------------------------------

const KINDS = { u8: Uint8Array, u16: Uint16Array, u32: Uint32Array, f32: Float32Array };

function column(packed) {
  if (!packed) return null;
  const [[kind, text]] = Object.entries(packed);
  const raw = atob(text);
  const bytes = new Uint8Array(raw.length);
  for (let k = 0; k < raw.length; k++) bytes[k] = raw.charCodeAt(k);
  return new KINDS[kind](bytes.buffer);
}

// Where each part begins, from the sizes of all.
function offsets(sizes) {
  const out = new Uint32Array(sizes.length + 1);
  for (let k = 0; k < sizes.length; k++) out[k + 1] = out[k] + sizes[k];
  return out;
}

// --- colours --------------------------------------------------------------------------------------
// Labels of one kind of span share a hue; the outside label is grey. Up to eight kinds have hues
// chosen by hand; more go round the circle, neighbours in the list far apart on it, in up to three
// tones.

const HUES = [255, 150, 65, 325, 200, 110, 290, 35];
const TONES = [[0], [-0.7, 0.7], [-1, 0, 1]];

const kindOf = (label) => (content.has_spans ? label.replace(/^[BIESLU]-/, "") : label);
const isOutside = (label) => content.has_spans && label === "O";
const kinds = [...new Set(labels.filter((label) => !isOutside(label)).map(kindOf))];
const tones = TONES[kinds.length <= 12 ? 0 : kinds.length <= 24 ? 1 : 2];
const around = Math.ceil(kinds.length / tones.length);
const stride = (() => {
  const divisor = (a, b) => (b ? divisor(b, a % b) : a);
  let step = Math.max(1, Math.round(0.38 * around)); // the golden section of the circle
  while (divisor(step, around) > 1) step++;
  return step;
})();

function colour(label) {
  if (isOutside(label)) return { "--hue": 0, "--chroma": 0, "--tone": 0 };
  const k = kinds.indexOf(kindOf(label));
  if (kinds.length <= HUES.length) return { "--hue": HUES[k], "--chroma": 1, "--tone": 0 };
  const ring = k % tones.length;
  const slot = stride * Math.floor(k / tones.length) + ring * (1 / tones.length + Math.round(around / 3));
  return { "--hue": Math.round(255 + (360 * slot) / around) % 360, "--chroma": 1, "--tone": tones[ring] };
}

const colours = labels.map(colour);
const swatch = (k) => element("span", { class: "swatch", style: colours[k], "aria-hidden": "true" });

// --- the threshold, shared by both sliders, the chart and the list --------------------------------

const threshold = {
  place: 0,
  listeners: [],
  set(place) {
    this.place = place;
    for (const listener of this.listeners) listener(place);
  },
  text(place) {
    const value = content.coverage.thresholds[place];
    return value.toFixed(value > 0.999 ? (value > 0.9999 ? 5 : 4) : value > 0.99 ? 3 : 2);
  },
};
