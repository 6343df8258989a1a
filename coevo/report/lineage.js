"use strict";
// Harness lineage: what each round proposed, with diff, prediction, verdict and numbers.

const VERDICTS = {
  apply: ["good", "✓ applied"], applied: ["good", "✓ applied"], fork: ["good", "⑂ forked"], forked: ["good", "⑂ forked"],
  reject: ["bad", "✕ rejected"], rejected: ["bad", "✕ rejected"], rolled_back: ["bad", "↶ rolled back"],
  no_effect: ["flat", "∅ no effect"], no_op: ["flat", "– no change"],
};
const verdict = (word) => VERDICTS[word] || ["flat", `• ${word.replaceAll("_", " ")}`];

function draw(name, paired) {
  if (!paired || !known(paired.mean_d)) return null;
  const ends = [paired.lo, paired.hi ?? (known(paired.lo) ? paired.mean_d : null)];
  const reach = Math.max(0.05, ...[paired.mean_d, ...ends].filter(known).map(Math.abs)) * 1.15;
  const x = (v) => 75 + (v / reach) * 70;
  const bounds = !known(paired.lo) ? "" : known(paired.hi) ? ` [${points(paired.lo)}, ${points(paired.hi)}]` : ` (≥ ${points(paired.lo)})`;
  const rates = known(paired.incumbent) ? `, ${pct(paired.incumbent)} → ${pct(paired.candidate)}` : "";
  const cost = known(paired.cost) ? `, tokens ${paired.cost < 0 ? "−" : "+"}${fixed(Math.abs(100 * paired.cost), 0)}%` : "";
  const lost = paired.lost ? `, ${paired.lost} of ${paired.asked} pairs lost` : "";
  return h("div", { class: "draw" }, h("span", {}, name),
    s("svg", { viewBox: "0 0 150 14", width: 84, "aria-hidden": "true" },
      s("line", { class: "axis", x1: 0, x2: 150, y1: 7, y2: 7 }),
      s("line", { class: "zero", x1: 75, x2: 75, y1: 1, y2: 13 }),
      known(ends[0]) && s("line", { x1: x(ends[0]), x2: x(ends[1]), y1: 7, y2: 7, stroke: "var(--soft)", "stroke-width": 4, "stroke-linecap": "round" }),
      s("circle", { cx: x(paired.mean_d), cy: 7, r: 4.5, fill: "var(--ink)" })),
    h("b", {}, `${points(paired.mean_d)}${bounds}`),
    h("span", { class: "rest" }, `${rates ? `${rates.slice(2)}, ` : ""}${several(paired.n, "task")}${paired.repeats ? ` × ${paired.repeats}` : ""}${cost}${lost}`));
}

const facts = (rows) => h("dl", { class: "facts" }, rows.filter(([, value]) => value !== "" && known(value)).flatMap(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]));

function cameTrue(found) {
  if (!found) return null;
  const rate = found.predicted ? ` (${pct(found.hits / found.predicted, 0)})` : "";
  return `${found.hits} of ${found.predicted} predicted tasks improved${rate}; ${found.unlocked} unlocked, ${found.stabilised} stabilised`
    + `${found.unpredicted ? `, ${found.unpredicted} of these not predicted` : ""}; ${found.regressed} regressed${found.regressed ? ` (${found.risk_met} named at risk)` : ""}, ${found.unchanged} unchanged`;
}

const NAMED = ["z", "z_needed", "level", "improved", "regressed"]; // of the gate's numbers, beside those that the draws show
function prediction(candidate) {
  const told = candidate.prediction;
  if (!told) return null;
  const failed = candidate.screens.filter((one) => !one.ok);
  const passed = candidate.screens.filter((one) => one.ok).map((one) => one.name);
  const numbers = NAMED.filter((name) => name in candidate.numbers).map((name) => `${name.replaceAll("_", " ")} ${number(candidate.numbers[name])}`);
  return [
    facts([["cause", told.cause], ["fix", told.fix], ["claims", told.claims.join(" ")],
      ["predicts", `${told.unlock} tasks unlocked, ${told.stabilise} stabilised, ${told.at_risk} at risk`],
      ["at risk", told.at_risk ? told.why_at_risk_hold : ""], ["signature", told.signature],
      ["evidence", told.evidence ? several(told.evidence, "place") + " in traces" : ""]]),
    h("h4", {}, "What came of it"),
    facts([["screens", [passed.length ? `${passed.join(", ")} passed` : "", ...failed.map((one) => `${one.name} failed: ${one.note}`)].filter(Boolean).join("; ")],
      ["gate", numbers.join(", ")], ["prediction", cameTrue(candidate.gate)],
      ["later rounds", cameTrue(candidate.later)]]),
  ];
}

// Lines of a diff with what was added and removed marked by colour; the sign says it too.
function diffText(text) {
  const kind = (line) => (/^(\+(?!\+\+)|add )/.test(line) ? "plus" : /^(-(?!--)|remove )/.test(line) ? "minus" : null);
  return h("pre", { class: "diff", tabindex: 0, "aria-label": "Diff" }, text.trimEnd().split("\n").map((line) => h("span", { class: kind(line) }, `${line}\n`)));
}

function candidateCard(candidate, key) {
  const [kind, text] = verdict(candidate.verdict);
  const more = [candidate.diff ? [h("h4", {}, "Diff against its parent ", candidate.parent && short(candidate.parent)), diffText(candidate.diff)] : null, prediction(candidate)];
  return h("div", { class: `candidate ${kind}` },
    h("div", { class: "head" }, badge(kind, text), h("span", {}, candidate.id), candidate.kind && h("span", { class: "sub" }, candidate.kind.replaceAll("_", " ")),
      candidate.harness_id && short(candidate.harness_id)),
    h("ul", { class: "edits" }, candidate.edits.map((edit) => h("li", {}, edit))),
    candidate.reasons.length ? h("ul", { class: "why" }, candidate.reasons.map((reason) => h("li", {}, reason))) : null,
    draw("select", candidate.select), draw("confirm", candidate.confirm),
    more.some(Boolean) ? fold(`${key}/${candidate.id}`, "Diff, prediction, numbers", more) : null);
}

// H0 and every edit that shipped, in order: the harness's own history on one line.
function path(run) {
  const shipped = run.lineage.rounds.flatMap((r) => r.candidates.filter((c) => verdict(c.verdict)[0] === "good").map((c) => ({ round: r.round, ...c })));
  const first = run.rounds[0]?.harness_id;
  if (!first) return null;
  return h("ol", { class: "path" },
    h("li", {}, h("b", {}, "H0"), " ", short(first)),
    shipped.map((c) => {
      const gain = c.confirm || c.select;
      return h("li", {}, h("span", { class: "sub" }, `round ${c.round}: `), c.edits.join("; "), gain && known(gain.mean_d) ? h("b", {}, ` ${points(gain.mean_d)}`) : null, " ", c.harness_id && short(c.harness_id));
    }));
}

function roundOf(record, key) {
  const kind = verdict(record.outcome);
  const spent = [record.incumbent && `incumbent passed ${record.incumbent.passed} of ${record.incumbent.runs} runs`,
    record.rollouts && `${record.rollouts} rollouts for ${number(record.tokens)} tokens`,
    record.llm && `${several(record.llm.calls, "model call")}, ${number(record.llm.prompt_tokens + record.llm.completion_tokens)} tokens`].filter(Boolean);
  const drift = record.drift.map((test) => `drift test of ${test.variant}: ${test.decision.replaceAll("_", " ")}, ${points(test.mean_d)} against the best on ${several(test.n, "task")}`);
  const weights = record.objectives.map((o) => `${o.category.replaceAll("_", " ")} (${o.tasks})`);
  return h("li", { class: kind[0] === "good" ? "changed" : "" },
    h("div", { class: "round-head" }, h("h3", {}, `Round ${record.round}`), badge(...kind), record.variant !== "main" && h("span", { class: "sub" }, `variant ${record.variant}`),
      record.harness_id && h("span", { class: "sub" }, "harness ", short(record.harness_id)), record.reason && h("span", { class: "sub" }, record.reason)),
    spent.length || drift.length ? h("p", { class: "sub" }, [...spent, ...drift].join(" · ")) : null,
    weights.length ? h("p", { class: "sub" }, `what failed (tasks): ${weights.join(", ")}`) : null,
    record.candidates.length ? h("div", { class: "candidates" }, record.candidates.map((c) => candidateCard(c, key))) : null);
}

function kinds(run, key) {
  const rows = run.lineage.kinds;
  return rows.length ? fold(`${key}/kinds`, "Kinds of edit, over all rounds", tableOf(["kind", "judged", "shipped", "predicted tasks", "that improved", "reputation", "may ship"],
    rows.map((r) => [r.kind.replaceAll("_", " "), r.judged, r.shipped, r.predicted, r.predicted ? `${r.hits} (${pct(r.hits / r.predicted, 0)})` : "–", number(r.reputation, 2), r.held_back ? "held back" : "yes"]))) : null;
}

function lineage() {
  const panels = eachRun((arm, run, index) => {
    const told = run.lineage.rounds.filter((r) => r.outcome !== "off");
    if (!told.length) return null;
    const all = told.flatMap((r) => r.candidates);
    const kept = all.filter((c) => verdict(c.verdict)[0] === "good").length;
    const key = `lineage/${index}`;
    const box = fold(key, `${runTitle(arm, run)}: ${several(all.length, "candidate")}, ${kept} kept`, path(run),
      h("ol", { class: "lineage" }, told.map((record) => roundOf(record, key))), kinds(run, key));
    box.open = arm === arms[arms.length - 1] && run === arm.runs[0];
    return box;
  });
  section("lineage", "Harness lineage", "What each round proposed and what the gate made of it. Numbers are success of the candidate minus the incumbent on the same tasks and seeds, in points: first in the select draw, then in an independent confirm draw with the interval that the gate used.", panels);
}
