"use strict";
// Drawing: small SVG charts that follow the width of their box, with one shared tooltip.
// Every text from a run enters the page as a text node, never as markup.

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    node.setAttribute(name, value === true ? "" : String(value));
  }
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    node.append(child.nodeType ? child : document.createTextNode(String(child)));
  }
  return node;
}
const h = (tag, attributes, ...children) => fill(document.createElement(tag), attributes, children);
const s = (tag, attributes, ...children) =>
  fill(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);

const known = (value) => value !== null && value !== undefined;
// As Python formats: the terminal and the page print the same digits, also of a tie (12.25).
const formats = [0, 1].map((digits) => new Intl.NumberFormat("en-US", {
  minimumFractionDigits: digits, maximumFractionDigits: digits, useGrouping: false, roundingMode: "halfEven" }));
const fixed = (value, digits) => formats[digits].format(value);
const percentage = (value) => fixed(100 * value, 1);
const pct = (value, digits = 1) => (known(value) ? `${fixed(100 * value, digits)}%` : "–");
const points = (value) => `${value < 0 ? "−" : "+"}${percentage(Math.abs(value))}`;
const number = (value, digits = 3) => {
  if (!known(value)) return "–";
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1e9) return `${+(value / 1e9).toPrecision(digits)}G`;
  if (size >= 1e6) return `${+(value / 1e6).toPrecision(digits)}M`;
  if (size >= 1e4) return `${+(value / 1e3).toPrecision(digits)}k`;
  if (size < 1e-3) return value.toExponential(1);
  return `${+value.toPrecision(digits)}`;
};
const seconds = (value) =>
  value >= 5400 ? `${(value / 3600).toFixed(1)} h` : value >= 90 ? `${(value / 60).toFixed(1)} min` : `${value.toFixed(1)} s`;
const interval = (result) =>
  result && known(result.success) ? `${pct(result.success)} [${percentage(result.lo)}, ${percentage(result.hi)}]` : "–";

// Arms differ by colour, dash and marker, so that none of the three is needed alone.
const DASHES = ["6 4", "none", "2 3", "none", "8 3 2 3", "none", "5 2", "3 2"];
const armColour = (slot) => `var(--a${slot % 8})`;
function marker(slot, x, y, r, attributes) {
  const at = { fill: armColour(slot), ...attributes };
  switch (slot % 4) {
    case 0: return s("circle", { cx: x, cy: y, r, ...at });
    case 1: return s("rect", { x: x - r, y: y - r, width: 2 * r, height: 2 * r, ...at });
    case 2: return s("path", { d: `M${x} ${y - r * 1.25}l${r * 1.25} ${r * 2.2}h${-r * 2.5}z`, ...at });
    default: return s("path", { d: `M${x} ${y - r * 1.4}l${r * 1.4} ${r * 1.4}l${-r * 1.4} ${r * 1.4}l${-r * 1.4} ${-r * 1.4}z`, ...at });
  }
}
const armKey = (slot) =>
  s("svg", { width: 30, height: 14, "aria-hidden": "true" },
    s("line", { x1: 1, x2: 29, y1: 7, y2: 7, stroke: armColour(slot), "stroke-width": 2.5, "stroke-dasharray": DASHES[slot % 8] }),
    marker(slot, 15, 7, 4));
const armLegend = (arms) => h("ul", { class: "legend" }, arms.map((arm) => h("li", {}, armKey(arm.slot), arm.label)));

const tip = {
  node: null,
  show(x, y, title, rows) {
    this.node = this.node || document.getElementById("tip");
    this.node.replaceChildren(
      h("b", {}, title),
      ...rows.map(([name, value]) => h("div", { class: "row" }, h("span", {}, name), h("span", {}, value))));
    this.node.hidden = false;
    const box = this.node.getBoundingClientRect();
    const left = x + 14 + box.width > window.innerWidth ? x - 14 - box.width : x + 14;
    this.node.style.left = `${Math.max(8, Math.min(left, window.innerWidth - box.width - 8))}px`;
    this.node.style.top = `${Math.max(8, Math.min(y - box.height / 2, window.innerHeight - box.height - 8))}px`;
  },
  hide() { if (this.node) this.node.hidden = true; },
};

function ticks(lo, hi, about) {
  const raw = (hi - lo || 1) / about;
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((m) => m * power).find((m) => m >= raw * 0.999);
  const found = [];
  for (let t = Math.ceil(lo / step - 1e-9); t * step <= hi + step * 1e-9; t++) found.push(+(t * step).toPrecision(12));
  return found;
}

// Ticks of a time axis from 0, in one unit for all: [value in seconds, text].
function timeTicks(hi, about) {
  const [unit, name] = hi >= 5400 ? [3600, "h"] : hi >= 90 ? [60, "min"] : [1, "s"];
  return ticks(0, hi / unit, about).map((t) => [t * unit, `${t} ${name}`]);
}

// Calls draw(width) now and whenever the box gets another width, after layout has settled.
function onWidth(box, draw) {
  let drawn = 0;
  new ResizeObserver(() => requestAnimationFrame(() => {
    const width = box.clientWidth;
    if (!width || width === drawn) return;
    drawn = width;
    draw(width);
  })).observe(box);
}

// A chart in a box: redrawn when the width changes; pointer and arrow keys move one cursor over xs.
function chart(label, xs, height, draw, tooltip) {
  const box = h("div", { class: "chart", style: `min-height:${height}px`, tabindex: 0, role: "img", "aria-label": `${label}. Arrow keys read the values.` });
  let at = -1;
  let frame = null;
  function select(index, clientX, clientY) {
    if (!frame) return;
    at = index;
    frame.cursor.replaceChildren();
    if (index < 0) return tip.hide();
    const x = frame.x(xs[index]);
    frame.cursor.append(s("line", { class: "cursor", x1: x, x2: x, y1: frame.top, y2: frame.bottom }));
    const rect = box.getBoundingClientRect();
    const [title, rows] = tooltip(xs[index]);
    tip.show(clientX ?? rect.left + x, clientY ?? rect.top + height / 2, title, rows);
  }
  onWidth(box, (width) => {
    const svg = s("svg", { viewBox: `0 0 ${width} ${height}`, height, "aria-hidden": "true" });
    frame = draw(svg, width, height);
    frame.cursor = s("g", {});
    svg.append(frame.cursor);
    box.replaceChildren(svg);
  });
  const nearest = (event) => {
    if (!frame) return;
    const x = event.clientX - box.getBoundingClientRect().left;
    let best = 0;
    xs.forEach((value, i) => { if (Math.abs(frame.x(value) - x) < Math.abs(frame.x(xs[best]) - x)) best = i; });
    select(best, event.clientX, event.clientY);
  };
  box.addEventListener("pointermove", nearest);
  box.addEventListener("pointerdown", nearest);
  box.addEventListener("pointerleave", () => select(-1));
  box.addEventListener("blur", () => select(-1));
  box.addEventListener("keydown", (event) => {
    const moves = { ArrowRight: Math.min(at + 1, xs.length - 1), ArrowLeft: Math.max(at - 1, 0), Home: 0, End: xs.length - 1, Escape: -1 };
    if (!(event.key in moves)) return;
    event.preventDefault();
    select(moves[event.key]);
  });
  return box;
}

function axes(svg, width, height, xs, domain, format, xLabel, options = {}) {
  const about = height < 200 ? 3 : 5;
  const steps = format === seconds ? timeTicks(domain[1], about) : ticks(domain[0], domain[1], about).map((t) => [t, format(t)]);
  const left = 14 + 7 * Math.max(...steps.map(([, text]) => text.length));
  const right = width - (options.right || 14);
  const [top, bottom] = [10, height - 36];
  const pad = options.band ? (right - left) / xs.length / 2 : Math.min(14, (right - left) / 20);
  const x = (v) => xs.length < 2 ? (left + right) / 2
    : left + pad + ((v - xs[0]) / (xs[xs.length - 1] - xs[0])) * (right - left - 2 * pad);
  const y = (v) => bottom - ((v - domain[0]) / (domain[1] - domain[0] || 1)) * (bottom - top);
  for (const [t, text] of steps) {
    svg.append(
      s("line", { class: "grid", x1: left, x2: right, y1: y(t), y2: y(t) }),
      s("text", { x: left - 8, y: y(t) + 4, "text-anchor": "end" }, text));
  }
  svg.append(s("line", { class: "axis", x1: left, x2: right, y1: bottom, y2: bottom }));
  const every = Math.ceil(xs.length / Math.max(2, (right - left) / 34));
  xs.forEach((v, i) => { if (i % every === 0) svg.append(s("text", { x: x(v), y: bottom + 17, "text-anchor": "middle" }, v)); });
  svg.append(s("text", { x: (left + right) / 2, y: height - 3, "text-anchor": "middle" }, xLabel));
  return { x, y, top, bottom, left, right, cursor: null };
}

// series: [{label, slot, points: [{x, y, lo?, hi?, text?}], faint?}]
function lineChart({ label, series, format, height = 300, domain, zero = false, xLabel = "round", names = false }) {
  const xs = [...new Set(series.flatMap((one) => one.points.map((p) => p.x)))].sort((a, b) => a - b);
  const values = series.flatMap((one) => one.points.flatMap((p) => [p.y, p.lo, p.hi])).filter(known);
  let [lo, hi] = domain || [Math.min(...values), Math.max(...values)];
  if (!domain) {
    const spread = hi - lo || Math.abs(hi) || 1;
    lo = zero && lo >= 0 ? 0 : lo - spread * 0.08;
    hi += spread * 0.08;
  }
  const draw = (svg, width) => {
    const wide = names && width > 620;
    const frame = axes(svg, width, height, xs, [lo, hi], format, xLabel, { right: wide ? 118 : 14 });
    for (const { slot, points: pts } of series.filter((one) => !one.faint && one.points.some((p) => known(p.lo)))) {
      const upper = pts.map((p) => `${frame.x(p.x)} ${frame.y(p.hi)}`);
      const lower = pts.map((p) => `${frame.x(p.x)} ${frame.y(p.lo)}`).reverse();
      svg.append(s("path", { d: `M${upper.concat(lower).join("L")}Z`, fill: armColour(slot), opacity: 0.13 }));
    }
    for (const { slot, points: pts, faint } of series) {
      const path = pts.map((p) => `${frame.x(p.x)} ${frame.y(p.y)}`).join("L");
      svg.append(s("path", { d: `M${path}`, fill: "none", stroke: armColour(slot), "stroke-width": faint ? 1 : 2.5, opacity: faint ? 0.45 : 1, "stroke-dasharray": DASHES[slot % 8], "stroke-linejoin": "round" }));
      if (!faint && pts.length <= 60) for (const p of pts) svg.append(marker(slot, frame.x(p.x), frame.y(p.y), 4, { stroke: "var(--panel)", "stroke-width": 1.5 }));
    }
    if (wide) {
      const ends = series.filter((one) => !one.faint).map((one) => ({ one, y: frame.y(one.points[one.points.length - 1].y) })).sort((a, b) => a.y - b.y);
      ends.forEach((end, i) => { if (i) end.y = Math.max(end.y, ends[i - 1].y + 16); });
      for (const { one, y } of ends) svg.append(s("text", { class: "strong", x: frame.right + 6, y: y + 4, style: `fill:${armColour(one.slot)}` }, one.label));
    }
    return frame;
  };
  const tooltip = (x) => [
    `${xLabel} ${x}`,
    series.filter((one) => !one.faint).map((one) => {
      const p = one.points.find((q) => q.x === x);
      return p ? [one.label, p.text || format(p.y)] : [one.label, "–"];
    }),
  ];
  const table = dataTable(label,
    [xLabel, ...series.filter((one) => !one.faint).map((one) => one.label)],
    xs.map((x) => [x, ...tooltip(x)[1].map((row) => row[1])]));
  return [chart(label, xs, height, draw, tooltip), table];
}

// bars: [{x, values: {key: count}}]; keys: [{key, label, colour}]
function stackedBars({ label, bars, keys, format, height = 220, xLabel = "round", share = true }) {
  const total = (bar) => Object.values(bar.values).reduce((a, b) => a + b, 0);
  const xs = bars.map((bar) => bar.x);
  const top = share ? 1 : Math.max(...bars.map(total));
  const draw = (svg, width) => {
    const frame = axes(svg, width, height, xs, [0, top || 1], share ? (v) => pct(v, 0) : format, xLabel, { band: true });
    const room = Math.min(46, ((frame.right - frame.left) / xs.length) * 0.72);
    for (const bar of bars) {
      const whole = share ? total(bar) || 1 : 1;
      let at = 0;
      for (const { key, colour } of keys) {
        const part = (bar.values[key] || 0) / whole;
        if (!part) continue;
        const [y1, y0] = [frame.y(at + part), frame.y(at)];
        svg.append(s("rect", { x: frame.x(bar.x) - room / 2, y: y1, width: room, height: Math.max(0.5, y0 - y1 - 1), fill: colour, rx: 1.5 }));
        at += part;
      }
    }
    return frame;
  };
  const row = (bar) => keys.filter(({ key }) => bar.values[key]).map(({ key, label: name }) => [
    name, share ? `${format(bar.values[key])} (${pct(bar.values[key] / total(bar), 0)})` : format(bar.values[key])]);
  const tooltip = (x) => [`${xLabel} ${x}`, row(bars.find((bar) => bar.x === x))];
  const legend = h("ul", { class: "legend" }, keys.map(({ label: name, colour }) =>
    h("li", {}, h("span", { class: "swatch", style: `background:${colour}` }), name)));
  const table = dataTable(label, [xLabel, ...keys.map((k) => k.label)], bars.map((bar) => [bar.x, ...keys.map(({ key }) => (bar.values[key] ? format(bar.values[key]) : "–"))]));
  return [legend, chart(label, xs, height, draw, tooltip), table];
}

function tableOf(heads, rows) {
  return h("div", { class: "scroll", tabindex: 0, role: "group", "aria-label": "Table" },
    h("table", {},
      h("thead", {}, h("tr", {}, heads.map((head) => h("th", { scope: "col" }, head)))),
      h("tbody", {}, rows.map((row) => h("tr", {}, row.map((cell, i) =>
        i ? h("td", {}, cell) : h("th", { scope: "row" }, cell)))))));
}
const dataTable = (label, heads, rows) => h("details", { "data-key": `numbers/${label}` }, h("summary", {}, "Show the numbers"), tableOf(heads, rows));

// Differences with intervals against a zero line; one focusable row a pair.
function forest(rows) {
  const reach = Math.max(0.02, ...rows.flatMap((row) => [Math.abs(row.lo), Math.abs(row.hi)])) * 1.12;
  return h("div", { class: "forest" }, rows.map((row) => {
    const box = h("div", { class: "chart", tabindex: 0, role: "img", "aria-label": `${row.name}: ${row.text}` });
    onWidth(box, (width) => {
      const narrow = width < 560;
      const [x0, x1] = narrow ? [8, width - 8] : [width * 0.3, width * 0.68];
      const height = narrow ? 62 : 34;
      const y = narrow ? 46 : 17;
      const x = (v) => (x0 + x1) / 2 + (v / reach) * ((x1 - x0) / 2);
      box.replaceChildren(s("svg", { viewBox: `0 0 ${width} ${height}`, height, "aria-hidden": "true" },
        s("line", { class: "axis", x1: x0, x2: x1, y1: y, y2: y }),
        s("line", { class: "zero", x1: x(0), x2: x(0), y1: y - 12, y2: y + 12 }),
        s("line", { x1: x(row.lo), x2: x(row.hi), y1: y, y2: y, stroke: armColour(row.slot), "stroke-width": 4, "stroke-linecap": "round", opacity: row.firm ? 1 : 0.5 }),
        marker(row.slot, x(row.mean), y, 5.5, row.firm ? {} : { fill: "var(--panel)", stroke: armColour(row.slot), "stroke-width": 2 }),
        s("text", { class: "strong", x: 0, y: narrow ? 12 : 21 }, row.name),
        s("text", { x: narrow ? 0 : x1 + 14, y: narrow ? 29 : 21 }, row.text)));
    });
    const show = (event) => {
      const rect = box.getBoundingClientRect();
      tip.show(event.clientX ?? rect.left + rect.width / 2, event.clientY ?? rect.bottom, row.name, row.tip);
    };
    box.addEventListener("pointermove", show);
    box.addEventListener("focus", show);
    for (const away of ["pointerleave", "blur"]) box.addEventListener(away, () => tip.hide());
    box.addEventListener("keydown", (event) => { if (event.key === "Escape") tip.hide(); });
    return box;
  }));
}
