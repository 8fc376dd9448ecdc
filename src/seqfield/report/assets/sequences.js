// The list of sequences: columns, filters, orders, drawing a page at a time, details of a token.

const PAGE = 50;
const store = content.sequences;
const words = store.words;
const starts = offsets(column(store.lengths));
const gold = column(store.gold); // one more than the label's place, 0 for none
const given = column(store.labels);
const likely = store.p && { from: offsets(column(store.kept)), label: column(store.top), p: column(store.p) };
const level = column(store.level);
const surprise = column(store.surprise);
const labelling = column(store.labelling);
const spans = store.spans && {
  from: offsets(column(store.spans.counts)), kinds: store.spans.kinds, kind: column(store.spans.kind),
  start: column(store.spans.start), end: column(store.spans.end), p: column(store.spans.p),
  right: column(store.spans.right),
};
const UNIT = 10000;

const size = (i) => starts[i + 1] - starts[i];
const isWrong = (t) => gold[t] > 0 && gold[t] - 1 !== given[t];
const shown = (t) => likely.p[likely.from[t]] / UNIT;

function weakest(i) {
  let least = 1;
  for (let t = starts[i]; t < starts[i + 1]; t++) least = Math.min(least, shown(t));
  return least;
}

// --- orders and filters ---------------------------------------------------------------------------

// name, and what to sort by, the largest first
const ORDERS = {
  file: ["as in the file", (i) => -i],
  ...(surprise && {
    surprise: ["most surprising", (i) => surprise[i]],
    mean: ["most surprising per token", (i) => surprise[i] / size(i)],
    weakest: ["least confident token", (i) => -weakest(i)],
  }),
  ...(labelling && { labelling: ["least probable labelling", (i) => -labelling[i]] }),
};

const view = { found: [], drawn: 0, matches: () => false };
let lowered = null; // texts for the search, made when it is first used

function matching() {
  const needle = byId("search").value.trim().toLowerCase();
  const a = byId("gold-filter").value, b = byId("predicted-filter").value;
  const wrong = byId("only-wrong").checked;
  if (needle && !lowered) lowered = words.map((row) => row.join(" ").toLowerCase());
  const byLabel = a !== "" || b !== "";
  view.matches = (t) => byLabel && (a === "" || gold[t] === Number(a) + 1) && (b === "" || given[t] === Number(b));
  const has = (i, test) => {
    for (let t = starts[i]; t < starts[i + 1]; t++) if (test(t)) return true;
    return false;
  };
  const out = [];
  for (let i = 0; i < words.length; i++) {
    if (needle && !lowered[i].includes(needle)) continue;
    if (byLabel && !has(i, view.matches)) continue;
    if (wrong && !has(i, isWrong)) continue;
    out.push(i);
  }
  const [, worth] = ORDERS[byId("order").value];
  const keys = new Map(out.map((i) => [i, worth(i)]));
  return out.sort((x, y) => keys.get(y) - keys.get(x) || x - y);
}

function refresh() {
  hideDetail();
  view.found = matching();
  view.drawn = 0;
  byId("list").replaceChildren();
  more();
}

function more() {
  const next = view.found.slice(view.drawn, view.drawn + PAGE);
  byId("list").append(...next.map(sequence));
  view.drawn += next.length;
  const total = words.length;
  byId("count").textContent = view.found.length === total
    ? `${plural(total, "sequence")}, ${count(view.drawn)} shown`
    : `${count(view.found.length)} of ${plural(total, "sequence")}, ${count(view.drawn)} shown`;
  byId("more").parentNode.hidden = view.drawn >= view.found.length;
}

// From the confusion matrix to the tokens behind a cell.
function showTokens(a, b) {
  byId("gold-filter").value = a;
  byId("predicted-filter").value = b;
  byId("search").value = "";
  byId("only-wrong").checked = false;
  refresh();
  byId("sequences").scrollIntoView();
  byId("list").querySelector(".token")?.focus({ preventScroll: true });
  hideDetail();
}

// --- drawing --------------------------------------------------------------------------------------

function sequence(i) {
  const facts = [`#${i + 1}`];
  if (labelling) facts.push(`labelling ${chance(labelling[i])}`);
  if (surprise) {
    const mean = surprise[i] / size(i);
    facts.push(`surprise ${fixed(surprise[i], 2)}`, `${fixed(mean, 2)} per token`);
  }
  let wrong = 0;
  for (let t = starts[i]; t < starts[i + 1]; t++) wrong += isWrong(t);
  if (wrong) facts.push(`${count(wrong)} wrong`);
  const row = element("div", { class: "tokens", dir: "auto", role: "group", "aria-label": `Sequence ${i + 1}` });
  let t = starts[i];
  for (const [box, end] of boxes(i)) {
    const inside = [];
    for (; t < end; t++) inside.push(token(i, t));
    if (box === null) row.append(...inside);
    else row.append(spanBox(box, inside));
  }
  const first = row.querySelector(".token");
  if (first) first.tabIndex = 0;
  return element("article", { class: "sequence" + (wrong ? " has-wrong" : "") },
    element("p", { class: "about" }, ...facts.map((text) => element("span", { text }))), row);
}

// The sequence cut at its spans: [span or null, end].
function boxes(i) {
  const out = [];
  let t = starts[i];
  if (spans) {
    for (let k = spans.from[i]; k < spans.from[i + 1]; k++) {
      if (starts[i] + spans.start[k] > t) out.push([null, starts[i] + spans.start[k]]);
      out.push([k, (t = starts[i] + spans.end[k])]);
    }
  }
  if (t < starts[i + 1]) out.push([null, starts[i + 1]]);
  return out;
}

function spanBox(k, inside) {
  const p = chance(spans.p[k] / UNIT);
  const kind = spans.kinds[spans.kind[k]];
  const own = colours[given[Number(inside[0].dataset.t)]];
  return element("span", { class: "span" + (spans.right[k] ? "" : " off"), style: own },
    element("span", { class: "inside" }, ...inside),
    element("span", { class: "kind" }, element("b", { text: kind }), element("span", { text: p })));
}

function token(i, t) {
  const label = labels[given[t]];
  const wrong = isWrong(t);
  const p = likely ? shown(t) : 1;
  const said = [words[i][t - starts[i]], label, ...(likely ? [chance(p)] : []), ...(wrong ? [`gold ${labels[gold[t] - 1]}`] : [])];
  const node = element("span", {
    class: "token" + (wrong ? " wrong" : "") + (view.matches(t) ? " match" : "") + (level && level[t] < threshold.place ? " abstained" : ""),
    role: "button", tabindex: -1, "data-t": t, "data-i": i, "aria-label": said.join(", "),
    style: { ...colours[given[t]], "--p": p.toFixed(3) },
  }, element("span", { class: "word", text: words[i][t - starts[i]] }));
  if (!spans && !isOutside(label)) node.append(element("span", { class: "tag", text: label }));
  if (wrong) node.append(element("span", { class: "gold", text: labels[gold[t] - 1] }));
  return node;
}

function startLegend() {
  const seen = [...new Map(labels.map((label, k) => [isOutside(label) ? "O" : kindOf(label), k])).entries()];
  byId("legend").append(
    ...(seen.length <= 60 ? seen.map(([kind, k]) => element("span", {}, swatch(k), element("span", { text: kind }))) : []),
    element("span", { class: "hint" }, element("span", { class: "sample wrong", text: "word" }), element("span", { text: "wrong, the gold label below" })),
    ...(spans ? [element("span", { class: "hint" }, element("span", { class: "sample off", text: "span" }), element("span", { text: "no gold span" }))] : []),
    ...(likely ? [element("span", { class: "hint" }, element("span", { class: "ramp", "aria-hidden": "true" }), element("span", { text: "paler is less probable" }))] : []),
  );
}

// --- details of a token ---------------------------------------------------------------------------

let pinned = null;

function hideDetail() {
  pinned?.classList.remove("pinned");
  pinned = null;
  byId("detail").hidden = true;
}

function showDetail(node) {
  const t = Number(node.dataset.t), i = Number(node.dataset.i);
  const facts = [["Predicted", labels[given[t]]], ["Gold", gold[t] ? labels[gold[t] - 1] : "none"]];
  const span = spans && spanAt(i, t - starts[i]);
  if (span) facts.push(["Span", `${span.kind}, ${span.p}`]);
  const panel = byId("detail");
  panel.replaceChildren(
    element("p", { class: "word", dir: "auto", text: words[i][t - starts[i]] }),
    element("dl", {}, ...facts.map(([name, text]) => element("div", {}, element("dt", { text: name }), element("dd", { text })))),
    ...(likely ? [bars(t)] : []),
    element("button", { type: "button", class: "round close", "aria-label": "Close", text: "×", onclick: hideDetail }),
  );
  panel.classList.toggle("wrong", isWrong(t));
  panel.hidden = false;
  place(panel, node.getBoundingClientRect());
}

function bars(t) {
  const rows = [];
  for (let k = likely.from[t]; k < likely.from[t + 1]; k++) rows.push([likely.label[k], likely.p[k] / UNIT]);
  rows.sort((a, b) => b[1] - a[1]);
  return element("ul", { class: "likely" }, ...rows.map(([k, p]) => element("li", { style: { ...colours[k], "--share": p }, class: k === given[t] ? "given" : "" },
    element("span", { text: labels[k] }), element("span", { class: "number", text: chance(p) }), element("i", { class: "bar", "aria-hidden": "true" }))));
}

function spanAt(i, t) {
  for (let k = spans.from[i]; k < spans.from[i + 1]; k++) {
    if (spans.start[k] <= t && t < spans.end[k]) return { kind: spans.kinds[spans.kind[k]], p: chance(spans.p[k] / UNIT) };
  }
  return null;
}

// Below the token, or above it where there is no room; on a phone the style pins it to the bottom.
function place(panel, box) {
  const left = Math.max(8, Math.min(box.left, innerWidth - panel.offsetWidth - 8));
  const below = box.bottom + 6 + panel.offsetHeight < innerHeight;
  panel.style.setProperty("left", `${left + scrollX}px`);
  panel.style.setProperty("top", `${(below ? box.bottom + 6 : Math.max(8, box.top - panel.offsetHeight - 6)) + scrollY}px`);
}

function startDetail() {
  const list = byId("list");
  const at = (event) => event.target.closest(".token");
  list.addEventListener("pointerover", (event) => {
    if (event.pointerType === "mouse" && !pinned && at(event)) showDetail(at(event));
  });
  list.addEventListener("pointerout", (event) => {
    if (event.pointerType === "mouse" && !pinned && at(event)) hideDetail();
  });
  const pin = (node) => {
    const same = pinned === node;
    hideDetail();
    if (same) return;
    pinned = node;
    node.classList.add("pinned");
    showDetail(node);
  };
  document.addEventListener("click", (event) => {
    if (at(event)) pin(at(event));
    else if (!event.target.closest("#detail")) hideDetail();
  });
  document.addEventListener("keydown", (event) => { if (event.key === "Escape") hideDetail(); });
  list.addEventListener("keydown", (event) => {
    const node = at(event);
    if (!node) return;
    if (event.key === "Enter" || event.key === " ") { event.preventDefault(); pin(node); return; }
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!step) return;
    event.preventDefault();
    const row = node.closest(".tokens");
    const all = [...row.querySelectorAll(".token")];
    const next = all[all.indexOf(node) + (getComputedStyle(row).direction === "rtl" ? -step : step)];
    if (!next) return;
    node.tabIndex = -1;
    next.tabIndex = 0;
    next.focus();
    hideDetail();
    showDetail(next);
  });
}

// --- start ----------------------------------------------------------------------------------------

function startSequences() {
  options(byId("order"), Object.entries(ORDERS).map(([key, [name]]) => [key, name]));
  const met = (codes, less) => {
    const out = new Set(codes);
    return [["", "any"], ...labels.map((name, k) => [k, name]).filter(([k]) => out.has(k + less))];
  };
  options(byId("gold-filter"), met(gold, 1));
  options(byId("predicted-filter"), met(given, 0));
  let waiting;
  byId("search").addEventListener("input", () => { clearTimeout(waiting); waiting = setTimeout(refresh, 120); });
  for (const id of ["order", "gold-filter", "predicted-filter", "only-wrong"]) byId(id).addEventListener("change", refresh);
  byId("toolbar").addEventListener("submit", (event) => event.preventDefault());
  byId("more").addEventListener("click", more);
  new IntersectionObserver((entries) => { if (entries[0].isIntersecting) more(); }, { rootMargin: "600px" }).observe(byId("more"));
  threshold.listeners.push((place) => {
    for (const node of byId("list").querySelectorAll(".token")) node.classList.toggle("abstained", level[node.dataset.t] < place);
  });
  startLegend();
  startDetail();
  refresh();
}
