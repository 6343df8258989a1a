"use strict";
// What every section uses: the page's data, sections, folds, names of arms and runs, badges.

let data = null;
let arms = [];
let byKey = {};
let runs = []; // of all arms, in the order of the data: [{arm, run, index}]
const chosen = {}; // what the reader picked; kept when a page that is served draws itself anew

function take(next) {
  data = next;
  arms = data.arms;
  byKey = Object.fromEntries(arms.map((arm) => [arm.key, arm]));
  runs = arms.flatMap((arm) => arm.runs.map((run) => ({ arm, run }))).map((one, index) => ({ ...one, index }));
}

const short = (id) => h("code", { class: "id", title: id }, id.slice(0, 8));
const range = (pair) => `${points(pair.mean)} points [${points(pair.lo)}, ${points(pair.hi)}]`;
const several = (n, one, many = `${one}s`) => `${n} ${n === 1 ? one : many}`;
const CONCLUSIONS = {
  "above": ["good", "▲ above"], "below": ["bad", "▼ below"],
  "within noise": ["flat", "≈ within noise"], "too few tasks": ["flat", "? too few tasks"],
};
const badge = (kind, text) => h("span", { class: `badge ${kind}` }, text);
const conclusion = (pair, of = "") => {
  const [kind, text] = CONCLUSIONS[pair.conclusion];
  return badge(kind, of ? `${text}${pair.conclusion === "within noise" ? " of" : ""} ${of}` : text);
};

function section(id, title, lead, ...children) {
  if (!children.flat(Infinity).some(Boolean)) return;
  document.getElementById("main").append(
    h("section", { id, "aria-labelledby": `${id}-title` }, h("h2", { id: `${id}-title` }, title), h("p", { class: "lead" }, lead), children));
  document.getElementById("nav").append(h("a", { href: `#${id}` }, title));
}
const panel = (title, sub, ...children) => h("div", {}, h("h3", {}, title), sub && h("p", { class: "sub" }, sub), children);
// key: names the fold within the page, so that it stays open when the page is drawn anew.
const fold = (key, summary, ...children) => h("details", { "data-key": key }, h("summary", {}, summary), children);
const runTitle = (arm, run) => (arm.runs.length > 1 ? `${arm.label}, seed ${run.seed}` : arm.label);
const eachRun = (make) => runs.map(({ arm, run, index }) => make(arm, run, index)).filter(Boolean);

// A labelled <select>; options: [[value, text]].
function picker(label, options, value, change) {
  const box = h("select", {}, options.map(([of, text]) => h("option", { value: of, selected: String(of) === String(value) }, text)));
  box.addEventListener("change", () => change(box.value));
  return h("label", { class: "picker" }, h("span", {}, label), box);
}

// Panels of each run: shown, or folded away where they are many.
const gallery = (key, panels, wrap = (all) => all) => (panels.length > 4 ? fold(key, `Each of the ${panels.length} runs`, wrap(panels)) : wrap(panels));
