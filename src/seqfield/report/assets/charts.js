// Charts: drawn at the width of their box, and again when that changes.

const charts = [];
const redraw = () => charts.forEach((draw) => draw());

function chart(id, draw) {
  const box = byId(id);
  const again = () => {
    const width = box.clientWidth;
    if (width) box.replaceChildren(draw(width));
  };
  charts.push(again);
  return again;
}

// Axes with a grid; x and y are [low, high], ticks are [value, text].
function axes(width, height, { x, y, xTicks, yTicks, xName, yName, bottom = 38 }) {
  const left = 46, right = 12, top = 24;
  const sx = (v) => left + ((v - x[0]) / (x[1] - x[0] || 1)) * (width - left - right);
  const sy = (v) => height - bottom - ((v - y[0]) / (y[1] - y[0] || 1)) * (height - bottom - top);
  const svg = shape("svg", { viewBox: `0 0 ${width} ${height}`, width, height });
  for (const [value, text] of yTicks) {
    svg.append(
      shape("line", { class: "grid", x1: left, x2: width - right, y1: sy(value), y2: sy(value) }),
      shape("text", { class: "tick", x: left - 8, y: sy(value) + 4, "text-anchor": "end", text }),
    );
  }
  xTicks.forEach(([value, text], k) => {
    const anchor = k === xTicks.length - 1 ? "end" : k === 0 ? "start" : "middle";
    svg.append(shape("text", { class: "tick", x: sx(value), y: height - bottom + 18, "text-anchor": anchor, text }));
  });
  svg.append(
    shape("text", { class: "axis", x: 0, y: 11, text: yName }),
    shape("text", { class: "axis", x: width - right, y: height - 5, "text-anchor": "end", text: xName }),
  );
  return { svg, sx, sy, left, right, top, bottom };
}

const QUARTERS = [0, 0.25, 0.5, 0.75, 1].map((v) => [v, String(100 * v)]);

// Round numbers that cover an interval, about n of them.
function niceTicks(low, high, n, text) {
  const step = [1, 2, 5, 10].map((m) => m * 10 ** Math.floor(Math.log10((high - low) / n || 1e-9)))
    .find((s) => (high - low) / s <= n + 0.5);
  const out = [];
  for (let v = Math.floor(low / step + 1e-9) * step; v < high + step * 0.999; v += step) out.push([v, text(v)]);
  return out;
}

// --- reliability ----------------------------------------------------------------------------------

function startReliability() {
  const data = content.reliability;
  const choice = byId("reliability-label");
  const readout = byId("reliability-readout");
  const size = (bins) => bins.reduce((sum, bin) => sum + (bin ? bin[2] : 0), 0);
  const labelled = data.by_label.map((bins, k) => [k, size(bins)]).filter(([, n]) => n > 0);
  options(choice, [["", "anything"], ...labelled.map(([k, n]) => [k, `${labels[k]} (${count(n)})`])]);
  const chosen = () => (choice.value === "" ? data.overall : data.by_label[choice.value]);

  const told = ([sure, right, tokens], k, n) =>
    `Confidence ${percent(k / n, 0)} to ${percent((k + 1) / n, 0)}: ${plural(tokens, "token")}, on average ${percent(sure)} sure, ${percent(right)} right.`;
  const rest = () => {
    const bins = chosen();
    const total = size(bins);
    const gap = bins.reduce((sum, b) => sum + (b ? b[2] * Math.abs(b[1] - b[0]) : 0), 0) / (total || 1);
    readout.textContent = `${plural(total, "token")}; mean gap ${percent(gap, 2)}. Point at a bar for its numbers.`;
  };
  const draw = chart("reliability", (width) => {
    const bins = chosen();
    const n = bins.length;
    const tall = Math.min(360, Math.max(250, width * 0.72));
    const low = 64;
    const { svg, sx, sy } = axes(width, tall + low, {
      x: [0, 1], y: [0, 1], xTicks: QUARTERS, yTicks: QUARTERS, bottom: 38 + low,
      xName: "confidence, %", yName: "right, %",
    });
    svg.append(shape("line", { class: "diagonal", x1: sx(0), y1: sy(0), x2: sx(1), y2: sy(1) }));
    const most = Math.max(1, ...bins.map((bin) => (bin ? bin[2] : 0)));
    const floor = tall + low - 20, room = low - 30;
    svg.append(shape("text", { class: "axis", x: 0, y: floor - room + 4, text: "tokens" }));
    svg.append(shape("line", { class: "grid", x1: sx(0), x2: sx(1), y1: floor, y2: floor }));
    const points = [];
    bins.forEach((bin, k) => {
      if (!bin) return;
      const [sure, right, tokens] = bin;
      const a = sx(k / n) + 1.5, b = sx((k + 1) / n) - 1.5;
      const height = Math.max(1.5, (tokens / most) * room);
      const column = shape("g", { class: "bin", role: "img", "aria-label": told(bin, k, n), "data-at": `0,${points.length}`, tabindex: points.length ? -1 : 0 },
        shape("rect", { class: "hit", x: a, y: sy(1), width: b - a, height: floor - sy(1) }),
        shape("rect", { class: "tokens", x: a, y: floor - height, width: b - a, height, rx: 1.5 }),
        shape("line", { class: "gap", x1: sx(sure), x2: sx(sure), y1: sy(sure), y2: sy(right) }),
        shape("circle", { class: "dot", cx: sx(sure), cy: sy(right), r: 3.5 + 3.5 * Math.sqrt(tokens / most) }),
      );
      for (const kind of ["pointerenter", "focus"]) column.addEventListener(kind, () => { readout.textContent = told(bin, k, n); });
      column.addEventListener("pointerleave", (event) => { if (event.pointerType === "mouse") rest(); });
      points.push(`${sx(sure)},${sy(right)}`);
      svg.append(column);
    });
    svg.addEventListener("keydown", (event) => walk(event, svg));
    if (points.length) svg.insertBefore(shape("polyline", { class: "curve thin", points: points.join(" ") }), svg.querySelector(".bin"));
    return svg;
  });
  choice.addEventListener("change", () => { draw(); rest(); });
  rest();
}

// --- precision by coverage ------------------------------------------------------------------------

function startCoverage() {
  const { thresholds, kept, right } = content.coverage;
  const total = kept[0];
  const share = (k) => kept[k] / (total || 1);
  const precision = (k) => (kept[k] ? right[k] / kept[k] : null);
  const sliders = [byId("threshold"), byId("second-threshold")];
  // the precision of a handful of tokens is noise: the curve leaves it out
  const drawn = thresholds.map((_, k) => k).filter((k) => kept[k] > 0 && (k === 0 || kept[k] >= Math.max(20, total / 200)));

  const draw = chart("coverage", (width) => {
    const height = Math.min(400, Math.max(250, width * 0.78));
    const worst = Math.min(1, ...drawn.map(precision));
    const yTicks = niceTicks(Math.min(worst, 0.999), 1, 4, (v) => (100 * v).toFixed(worst > 0.97 ? 1 : 0));
    const { svg, sx, sy } = axes(width, height, {
      x: [0, 1], y: [yTicks[0][0], 1], xTicks: QUARTERS, yTicks, xName: "coverage, %", yName: "precision, %",
    });
    const points = drawn.map((k) => `${sx(share(k))},${sy(precision(k))}`);
    svg.append(shape("polyline", { class: "curve", points: points.join(" ") }));
    const here = threshold.place;
    if (kept[here] && precision(here) >= yTicks[0][0]) {
      const cx = sx(share(here)), cy = sy(precision(here));
      svg.append(
        shape("line", { class: "guide", x1: cx, x2: cx, y1: cy, y2: sy(yTicks[0][0]) }),
        shape("line", { class: "guide", x1: sx(0), x2: cx, y1: cy, y2: cy }),
        shape("circle", { class: "dot", cx, cy, r: 6 }),
      );
    }
    const pick = (event) => {
      const at = event.clientX - svg.getBoundingClientRect().left;
      const near = (k) => Math.abs(sx(share(k)) - at);
      if (drawn.length) threshold.set(drawn.reduce((best, k) => (near(k) < near(best) ? k : best)));
    };
    svg.addEventListener("click", pick);
    return svg;
  });

  threshold.listeners.push((place) => {
    const text = threshold.text(place);
    byId("threshold-value").textContent = byId("second-threshold-value").textContent = text;
    byId("coverage-share").textContent = percent(share(place));
    byId("coverage-precision").textContent = percent(precision(place), 2);
    byId("coverage-abstained").textContent = count(total - kept[place]);
    for (const slider of sliders) {
      slider.value = place;
      slider.style.setProperty("--done", `${(100 * place) / (thresholds.length - 1)}%`);
      slider.setAttribute("aria-valuetext", `at least ${text}: coverage ${percent(share(place))}, precision ${percent(precision(place))}`);
    }
    draw();
  });
  for (const slider of sliders) {
    slider.max = thresholds.length - 1;
    slider.addEventListener("input", () => threshold.set(Number(slider.value)));
  }
}

// --- learning curve -------------------------------------------------------------------------------

const CURVES = { token_accuracy: "Token accuracy", span_f1: "Span F1", nll_per_token: "NLL per token" };

function startLearning() {
  const { sizes, scores } = content.learning;
  const choice = byId("learning-score");
  const readout = byId("learning-readout");
  options(choice, Object.keys(scores).map((key) => [key, CURVES[key]]));
  const isShare = () => choice.value !== "nll_per_token";
  const text = (v) => (isShare() ? percent(v) : fixed(v));
  const told = (k) => {
    const [value, low, high] = scores[choice.value][k];
    return `${plural(sizes[k], "training sequence")}: ${text(value)}, 95${THIN}% interval ${text(low)} to ${text(high)}.`;
  };
  const say = (k) => { readout.textContent = told(k); };
  const draw = chart("learning-chart", (width) => {
    const points = scores[choice.value].map((p, k) => [sizes[k], ...p.map(Number)])
      .filter((p) => p.every(Number.isFinite));
    const height = Math.min(340, Math.max(230, width * 0.45));
    const lows = points.map((p) => p[2]), highs = points.map((p) => p[3]);
    const yTicks = niceTicks(Math.min(...lows), Math.max(...highs), 5,
      (v) => (isShare() ? (100 * v).toFixed(0) : v.toFixed(2)));
    const log = Math.log;
    const { svg, sx, sy } = axes(width, height, {
      x: [log(sizes[0]), log(sizes[sizes.length - 1])], y: [yTicks[0][0], yTicks[yTicks.length - 1][0]],
      xTicks: sizes.map((n) => [log(n), count(n)]), yTicks,
      xName: "training sequences", yName: CURVES[choice.value] + (isShare() ? ", %" : ""),
    });
    const at = (p, j) => `${sx(log(p[0]))},${sy(p[j])}`;
    svg.append(
      shape("polygon", { class: "band", points: [...points.map((p) => at(p, 3)), ...points.map((p) => at(p, 2)).reverse()].join(" ") }),
      shape("polyline", { class: "curve", points: points.map((p) => at(p, 1)).join(" ") }),
    );
    for (const p of points) {
      const k = sizes.indexOf(p[0]);
      const dot = shape("circle", {
        class: "dot", cx: sx(log(p[0])), cy: sy(p[1]), r: 5.5, role: "img", "aria-label": told(k),
        "data-at": `0,${k}`, tabindex: p === points[0] ? 0 : -1, onpointerenter: () => say(k), onfocus: () => say(k),
      });
      svg.append(dot);
    }
    svg.addEventListener("keydown", (event) => walk(event, svg));
    return svg;
  });
  choice.addEventListener("change", () => { draw(); say(sizes.length - 1); });
  say(sizes.length - 1);
}
