// Headline scores, facts, confusion matrix, sortable tables, weights.

// --- summary --------------------------------------------------------------------------------------

const SHARES = new Set(["token_accuracy", "sequence_accuracy", "span_f1", "span_precision", "span_recall"]);

function startHeadlines() {
  for (const group of new Set(content.metrics.map((metric) => metric.group))) {
    const [first, ...others] = content.metrics.filter((metric) => metric.group === group);
    byId("headlines").append(
      element("div", { class: "card panel" },
        element("h3", { text: first.lower_is_better ? `${group}, lower is better` : group }),
        headline(first, "big"),
        ...others.map((metric) => headline(metric, "small")),
      ),
    );
  }
}

function headline(metric, size) {
  const share = SHARES.has(metric.key);
  const text = (v) => (share ? percent(v) : fixed(v));
  const known = metric.low !== null && metric.high !== null;
  const low = text(metric.low).replace(`${THIN}%`, "");
  const range = known ? `${low} – ${text(metric.high)}` : "no interval";
  const said = known && size === "big" ? `95${THIN}% interval ${range}` : range;
  const node = element("div", { class: `metric ${size}`, "data-key": metric.key, title: metric.meaning },
    element("p", { class: "name", text: metric.name }),
    element("p", { class: "value", text: text(metric.value) }),
    element("p", { class: "range", text: said }),
  );
  if (share && known) node.append(strip(metric));
  if (size === "big") node.append(element("p", { class: "meaning", text: metric.meaning }));
  return node;
}

// The interval on the scale from 0 to 1.
function strip({ value, low, high }) {
  const at = (v) => `${100 * v}%`;
  return element("div", { class: "strip", "aria-hidden": "true" },
    element("i", { class: "range-bar", style: { left: at(low), width: at(high - low) } }),
    element("i", { class: "point", style: { left: at(value) } }),
  );
}

function startFacts() {
  const { model, data } = content;
  byId("lead").textContent = [
    model ? model.class : null, plural(content.n_classes, "label"),
    plural(data.sequences, "sequence"), plural(data.tokens, "token"),
  ].filter(Boolean).map((text) => text.replaceAll(" ", "\u00a0")).join("  ·  ");
  const rows = [];
  if (model) {
    const own = Object.entries(model.settings);
    const chips = own.map(([k, v]) => element("code", { text: `${k} = ${v}` }));
    rows.push(["Model", [element("span", { text: model.class })]]);
    rows.push(["Settings", chips.length ? chips : [element("span", { text: "defaults" })]]);
    rows.push(["Features", [element("span", { text: model.features })]]);
    if (!model.probabilities) rows.push(["Probabilities", [element("span", { text: "none: this model gives scores only" })]]);
  }
  const unlabelled = data.tokens - data.labelled;
  const size = `${plural(data.sequences, "sequence")}, ${plural(data.tokens, "token")}` +
    (unlabelled ? `, ${count(unlabelled)} of them without a gold label` : "");
  rows.push(["Data", [element("span", { text: size })]]);
  rows.push(["Labels", [element("span", { text: labels.slice(0, content.n_classes).join(", ") })]]);
  byId("facts").append(...rows.map(([name, parts]) =>
    element("div", {}, element("dt", { text: name }), element("dd", {}, ...parts))));
  byId("fine").textContent = "Intervals come from resampling whole sequences." +
    (content.coverage ? " Confidence is the probability of the predicted label." : "");
  const strangers = labels.slice(content.n_classes);
  if (strangers.length) {
    byId("unknown").hidden = false;
    byId("unknown").textContent = `Gold labels the model does not know count as missed: ${strangers.join(", ")}.`;
  }
}

// --- confusion ------------------------------------------------------------------------------------

const MOST_ROWS = 60; // labels in the matrix; with more, those with most tokens
const FEW = 14; // so many labels leave room for numbers in the cells
const MANY = 22; // more labels need the whole width

function startConfusion() {
  const n = labels.length;
  const counts = new Map(content.confusion.map(([a, b, c]) => [a * n + b, c]));
  const gold = new Float64Array(n), met = new Float64Array(n);
  for (const [a, b, c] of content.confusion) { gold[a] += c; met[a] += c; met[b] += c; }
  const used = labels.map((_, k) => k).filter((k) => met[k] > 0);
  const shown = new Set([...used].sort((a, b) => met[b] - met[a]).slice(0, MOST_ROWS));
  const order = used.filter((k) => shown.has(k));
  const readout = byId("confusion-readout");
  const rest = () => {
    readout.textContent = used.length > order.length
      ? `The ${order.length} most frequent of ${used.length} labels.` : "";
  };
  let chosen = null; // the cell whose numbers stay
  const say = (a, b, c) => {
    const share = gold[a] ? `, ${percent(c / gold[a])} of gold ${labels[a]}` : "";
    readout.textContent = `Gold ${labels[a]}, predicted ${labels[b]}: ${plural(c, "token")}${share}. `;
  };
  const choose = (cell, a, b, c) => {
    chosen?.removeAttribute("aria-selected");
    chosen = cell;
    cell.setAttribute("aria-selected", "true");
    say(a, b, c);
    if (c) readout.append(element("button", { type: "button", class: "link", text: "Show the sequences", onclick: () => showTokens(a, b) }));
  };
  const table = byId("confusion");
  table.classList.toggle("roomy", order.length <= FEW);
  table.closest(".pair").classList.toggle("stacked", order.length > MANY);
  const head = element("tr", {}, element("td", { class: "corner" }),
    ...order.map((k) => element("th", { scope: "col", class: labels[k].length > 2 ? "" : "short" }, element("span", { text: labels[k] }))));
  const body = order.map((a, row) => element("tr", {},
    element("th", { scope: "row" }, swatch(a), element("span", { text: labels[a] })),
    ...order.map((b, at) => {
      const c = counts.get(a * n + b) || 0;
      const strength = gold[a] ? c / gold[a] : 0;
      return element("td", {
        class: c === 0 ? "none" : a === b ? "hit" : "miss",
        style: { "--strength": Math.sqrt(strength).toFixed(3) },
        tabindex: row + at === 0 ? 0 : -1, "data-at": `${row},${at}`,
        "aria-label": `gold ${labels[a]}, predicted ${labels[b]}: ${c}`,
        text: c && order.length <= FEW ? count(c) : "",
        onpointerenter: () => chosen || say(a, b, c), onfocus: (event) => choose(event.target, a, b, c),
      });
    })));
  table.append(element("thead", {}, head), element("tbody", {}, ...body));
  table.addEventListener("pointerleave", () => chosen || rest());
  table.addEventListener("keydown", (event) => walk(event, table));
  rest();
  startMistakes(counts, gold);
}

// Arrow keys move between cells; only the current one is a tab stop.
function walk(event, table) {
  const step = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key];
  const cell = event.target.closest("[data-at]");
  if (!step || !cell) return;
  event.preventDefault();
  const [row, at] = cell.dataset.at.split(",").map(Number);
  const next = table.querySelector(`[data-at="${row + step[0]},${at + step[1]}"]`);
  if (!next) return;
  cell.tabIndex = -1;
  next.tabIndex = 0;
  next.focus();
}

function startMistakes(counts, gold) {
  const n = labels.length;
  const wrong = [...counts].map(([key, c]) => [Math.floor(key / n), key % n, c]).filter(([a, b]) => a !== b);
  wrong.sort((x, y) => y[2] - x[2]);
  const most = wrong.length ? wrong[0][2] : 1;
  byId("mistakes").append(...wrong.slice(0, 10).map(([a, b, c]) =>
    element("li", {}, element("button", { type: "button", onclick: () => showTokens(a, b), "aria-label": `Show the ${c} tokens with gold ${labels[a]} predicted as ${labels[b]}` },
      element("span", { class: "names" },
        element("span", {}, swatch(a), labels[a]), element("span", { class: "arrow", text: "→" }),
        element("span", {}, swatch(b), labels[b])),
      element("span", { class: "number", text: count(c) }),
      element("span", { class: "bar", style: { "--share": c / most } }),
      element("span", { class: "of", text: `${percent(c / gold[a])} of gold ${labels[a]}` }),
    ))));
  if (!wrong.length) byId("mistakes").append(element("li", { class: "hint", text: "None: every label is right." }));
}

// --- sortable tables ------------------------------------------------------------------------------

// columns: {key, name, text(value), bar}; rows: objects; the first column is a heading of the row.
function sortable(id, columns, rows, heading) {
  const table = byId(id);
  const state = { key: null, down: true };
  const body = element("tbody");
  const heads = columns.map((column) => element("th", { scope: "col", class: column.number ? "number" : "" },
    element("button", { type: "button", onclick: () => sort(column) }, element("span", { text: column.name }))));
  function sort(column) {
    state.down = state.key === column.key ? !state.down : Boolean(column.number);
    state.key = column.key;
    columns.forEach((c, k) => {
      if (c === column) heads[k].setAttribute("aria-sort", state.down ? "descending" : "ascending");
      else heads[k].removeAttribute("aria-sort");
    });
    const worth = (row) => (row[column.key] === null ? -Infinity : row[column.key]);
    const compare = column.number ? (a, b) => worth(a) - worth(b)
      : (a, b) => String(a[column.key]).localeCompare(String(b[column.key]), "en", { numeric: true });
    draw([...rows].sort((a, b) => (state.down ? -1 : 1) * compare(a, b)));
  }
  function draw(ordered) {
    body.replaceChildren(...ordered.map((row) => element("tr", {}, ...columns.map((column, k) => {
      if (k === 0) return element("th", { scope: "row" }, ...heading(row));
      const cell = element("td", { class: "number" }, element("span", { text: column.text(row[column.key]) }));
      if (column.bar) cell.append(element("i", { class: "bar", style: { "--share": row[column.key] || 0 }, "aria-hidden": "true" }));
      return cell;
    }))));
  }
  table.append(element("thead", {}, element("tr", {}, ...heads)), body);
  draw(rows);
}

const SCORE_COLUMNS = [
  { key: "precision", name: "Precision", number: true, text: (v) => percent(v) },
  { key: "recall", name: "Recall", number: true, text: (v) => percent(v) },
  { key: "f1", name: "F1", number: true, text: (v) => percent(v), bar: true },
  { key: "support", name: "Support", number: true, text: (v) => count(v) },
];

function startTables() {
  const rows = content.per_label.map((row) => ({ ...row, name: labels[row.label] }));
  const columns = [{ key: "name", name: "Label" }, ...SCORE_COLUMNS];
  if (content.coverage) columns.push({ key: "confidence", name: "Mean confidence", number: true, text: (v) => percent(v) });
  sortable("per-label", columns, rows, (row) => [swatch(row.label), element("span", { text: row.name })]);
  if (!content.span_types) return;
  byId("span-types-card").hidden = false;
  sortable("span-types", [{ key: "kind", name: "Kind" }, ...SCORE_COLUMNS], content.span_types, (row) => {
    const k = labels.findIndex((label) => kindOf(label) === row.kind);
    return [k < 0 ? "" : swatch(k), element("span", { text: row.kind || "(no type)" })];
  });
}

// --- features -------------------------------------------------------------------------------------

function startFeatures() {
  const { what, labels: rows } = content.features;
  const choice = byId("features-label");
  const used = rows.map((_, k) => k).filter((k) => rows[k].high.length || rows[k].low.length);
  options(choice, used.map((k) => [k, labels[k]]));
  const most = Math.max(...rows.flatMap((row) => [...row.high, ...row.low].map(([, v]) => Math.abs(v))));
  const side = (title, pairs, kind) => element("div", { class: kind },
    element("h4", { text: title }),
    pairs.length ? element("ul", {}, ...pairs.map(([name, value]) => element("li", {},
      element("code", { text: name, dir: "auto" }),
      element("span", { class: "number", text: (value > 0 ? "+" : "−") + Math.abs(value).toFixed(3) }),
      element("i", { class: "bar", style: { "--share": Math.abs(value) / most }, "aria-hidden": "true" }),
    ))) : element("p", { class: "hint", text: `No ${what} does.` }));
  const draw = () => {
    const row = rows[choice.value];
    byId("features-table").replaceChildren(side("For it", row.high, "for"), side("Against it", row.low, "against"));
  };
  choice.addEventListener("change", draw);
  draw();
}
