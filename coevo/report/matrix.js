"use strict";
// The harness × policy matrix as a heat map, and the gain split into harness, model and interaction.

const roundsOf = (rounds) => (rounds.length > 1 ? `rounds ${rounds[0]}–${rounds[rounds.length - 1]}` : `round ${rounds[0]}`);

function heatMap(found) {
  const rates = found.cells.map((cell) => cell.result.success).filter(known);
  const [lo, hi] = [Math.min(...rates), Math.max(...rates)];
  const shade = (rate) => (hi > lo ? (rate - lo) / (hi - lo) : 0.5);
  const cellOf = (row, column) => found.cells.find((cell) => cell.harness === row && cell.policy === column);
  const at = (row, column) => {
    const cell = cellOf(row, column);
    if (!cell || !known(cell.result.success)) return h("td", {}, "–");
    const part = 8 + 87 * shade(cell.result.success);
    return h("td", { class: `heat${part > 72 ? " strong" : ""}`, style: `--part:${part.toFixed(0)}%`, tabindex: 0,
      "aria-label": `harness of ${roundsOf(found.harnesses[row].rounds)} with policy ${found.policies[column].version}: ${interval(cell.result)}, ${cell.result.n} episodes` },
    h("b", {}, pct(cell.result.success)), h("span", {}, `n=${cell.result.n}`));
  };
  const table = h("div", { class: "scroll", tabindex: 0, role: "group", "aria-label": "Matrix" }, h("table", { class: "heat-table" },
    h("thead", {},
      h("tr", {}, h("td", {}), h("th", { colspan: found.policies.length, scope: "colgroup" }, "policy")),
      h("tr", {}, h("th", { scope: "col" }, "harness"), found.policies.map((policy) => h("th", { scope: "col" }, `M${policy.version}`, h("span", { class: "sub" }, roundsOf(policy.rounds)))))),
    h("tbody", {}, found.harnesses.map((harness, row) => h("tr", {},
      h("th", { scope: "row" }, `H${row} `, short(harness.id), h("span", { class: "sub" }, roundsOf(harness.rounds))),
      found.policies.map((_, column) => at(row, column)))))));
  const told = (event) => {
    const box = event.target.closest(".heat");
    if (!box) return tip.hide();
    const row = [...box.closest("tbody").children].indexOf(box.parentNode);
    const cell = cellOf(row, [...box.parentNode.children].indexOf(box) - 1);
    const rect = box.getBoundingClientRect();
    tip.show(rect.right, rect.top, `H${row} · M${found.policies[cell.policy].version}`, [["success", pct(cell.result.success)], ["95%, Wilson", `${pct(cell.result.lo)} to ${pct(cell.result.hi)}`],
      ["solved", `${cell.result.successes} of ${cell.result.n}`], ["measured by", cell.source === "run" ? "the run" : "coevo matrix"]]);
  };
  table.addEventListener("pointerover", told);
  table.addEventListener("focusin", told);
  for (const away of ["pointerleave", "focusout"]) table.addEventListener(away, () => tip.hide());
  return table;
}

const FEW = 20; // as in the comparison: with fewer tasks the interval is too narrow to conclude from

function effects(found, parts, names) {
  return forest(names.map(([key, name, slot]) => {
    const effect = parts[key];
    const firm = parts.n_tasks >= FEW && (effect.lo > 0 || effect.hi < 0);
    return { ...effect, name, slot, firm, text: range(effect),
      tip: [["points", range(effect)], ["tasks", parts.n_tasks], ["reading", parts.n_tasks < FEW ? "too few tasks" : firm ? "beyond noise" : "within noise"]] };
  }));
}

function decomposition(found) {
  const parts = found.decomposition;
  if (!parts) return h("p", { class: "note" }, "No task was scored in all four corners, so that the gain cannot be split.");
  const [from, to] = [`H${parts.rows[0]}·M${found.policies[parts.columns[0]].version}`, `H${parts.rows[1]}·M${found.policies[parts.columns[1]].version}`];
  return h("div", {},
    h("p", { class: "sub" }, `What the gain from ${from} to ${to} is made of: points over the same ${several(parts.n_tasks, "task")}, 95% bootstrap over tasks. Total = harness + model; each holds half of the interaction.`),
    effects(found, parts, [["total", "Total", 0], ["harness", "Harness", 1], ["model", "Model", 2], ["interaction", "Interaction", 3]]),
    fold(`matrix/alone/${found.run}`, "Each alone", effects(found, parts, [["harness_alone", "Harness alone", 1], ["model_alone", "Model alone", 2]]),
      h("p", { class: "note" }, "Alone: beside the first of the other. These two and the interaction sum to the total.")));
}

function matrix() {
  const panels = eachRun((arm, run) => run.matrix && h("div", { class: "matrix" },
    h("h3", {}, runTitle(arm, run)),
    h("p", { class: "sub" }, `success on ${several(run.matrix.n, "task")} of split ${run.matrix.split}`),
    h("div", { class: "two" }, h("div", {}, heatMap(run.matrix)), decomposition(run.matrix)),
    run.matrix.notes.map((note) => h("p", { class: "note" }, note))));
  section("matrix", "Harness × model matrix", "Every harness with every policy, on the same tasks and seeds: what the harness gained, what the weights gained, and what they are worth together. Made by coevo matrix.", panels);
}
