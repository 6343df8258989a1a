"use strict";
// The task × round grid of one run and split; a click on a cell shows the traces of its runs.

const STATES = {
  s: ["solved", "✓", "all runs of that round passed"],
  f: ["flipping", "◐", "some runs passed, others did not; or it passed again after it had been lost"],
  r: ["regressed", "▼", "no run passed, and in the round before some had"],
  u: ["unsolved", "·", "no run passed, then or in the round before"],
  a: ["absent", "", "not run, or nothing scored"],
};
const FILTERS = { all: "all tasks", changed: "tasks that changed", flipping: "ever flipping", regressed: "ever regressed", unsolved: "never solved" };
const KEPT = {
  all: () => true,
  changed: (states) => new Set(states.replaceAll("a", "").replaceAll("r", "u")).size > 1,
  flipping: (states) => states.includes("f"),
  regressed: (states) => states.includes("r"),
  unsolved: (states) => !/[sf]/.test(states),
};

function grid() {
  const withGrids = runs.filter(({ run }) => run.grids.length);
  if (!withGrids.length) return;
  const box = h("div", { id: "grid-box" });
  const first = [...withGrids].reverse().find(({ run }) => run.grids.some((one) => one.split === "evolve")) || withGrids[withGrids.length - 1];
  section("tasks", "Tasks by round",
    "What became of every task in every round. Held-out tasks are the same in each round; of the tasks that it learns from, each round draws its own. Choose a cell to read the traces of its runs.",
    box);
  chosen.grid = { run: first.index, split: null, filter: "all", ...chosen.grid };
  drawGrid(box, withGrids);
}

function drawGrid(box, withGrids) {
  const one = withGrids.find(({ index }) => index === +chosen.grid.run) || withGrids[0];
  const table = one.run.grids.find(({ split }) => split === chosen.grid.split) || one.run.grids[0];
  const again = (change) => { Object.assign(chosen.grid, change); drawGrid(box, withGrids); };
  const shown = table.tasks.map((task, row) => ({ task: data.tasks[task], row })).filter(({ row }) => KEPT[chosen.grid.filter](table.states[row]));
  const codes = ["s", "f", "r", "u"];
  const counts = table.rounds.map((round, column) => ({
    x: round, values: Object.fromEntries(codes.map((code) => [code, table.states.filter((states) => states[column] === code).length])),
  }));
  const keys = codes.map((code) => ({ key: code, label: STATES[code][0], colour: `var(--t-${code})` }));
  const [, bars, numbers] = stackedBars({ label: `${runTitle(one.arm, one.run)}: ${SPLITS[table.split] || table.split} by state and round`, bars: counts, keys, format: number, height: 170 });
  box.replaceChildren(
    h("div", { class: "pickers" },
      picker("Run", withGrids.map(({ arm, run, index }) => [index, runTitle(arm, run)]), one.index, (value) => again({ run: value })),
      picker("Split", one.run.grids.map(({ split }) => [split, SPLITS[split] || split]), table.split, (value) => again({ split: value })),
      picker("Show", Object.entries(FILTERS), chosen.grid.filter, (value) => again({ filter: value }))),
    h("p", { class: "note" }, codes.map((code) => [h("span", { class: `cell ${code} key` }, STATES[code][1]), ` ${STATES[code][0]}: ${STATES[code][2]}. `])),
    bars, numbers,
    h("p", { class: "note", role: "status" }, `${shown.length} of ${several(table.tasks.length, "task")}. ${tracesNote(table.split)}`),
    shown.length ? cells(one, table, shown) : h("p", { class: "note" }, "No task of this kind."));
}

function tracesNote(split) {
  if (split !== "evolve") return "Held-out episodes keep no trace, so that nothing can learn from them.";
  if (data.live) return "A click reads the traces from the run.";
  const { asked, shown } = data.traces;
  return shown < asked
    ? `The page holds the traces of ${shown} of ${asked} chosen episodes (at most two a cell, and so many as fit its limit); marked cells have one. All are under the run's traces/.`
    : "Of each cell, one run that passed and one that did not have their trace here; all are under the run's traces/.";
}

// Whether the page holds a trace of this cell.
const hasTrace = (index, key, round) =>
  data.live || data.traces.chunks.some((chunk) => chunk.run === index && chunk.round === round && chunk.tasks.includes(key));

function cells(one, table, shown) {
  const evolve = table.split === "evolve";
  const groups = new Set(shown.map(({ task }) => task.group)).size > 1;
  const body = shown.map(({ task, row }) => h("tr", {},
    h("th", { scope: "row", title: task.name }, h("span", { class: "task" }, task.name)), groups ? h("td", { class: "group" }, task.group) : null,
    table.rounds.map((round, column) => {
      const code = table.states[row][column];
      if (code === "a") return h("td", {});
      const [passed, n] = [table.passed[row][column], table.n[row][column]];
      const traced = evolve && hasTrace(one.index, task.key, round);
      return h("td", {}, h("button", {
        class: `cell ${code}${traced ? " traced" : ""}`, tabindex: -1, "data-row": row, "data-column": column,
        "aria-label": `${task.name}, round ${round}: ${STATES[code][0]}, ${passed} of ${several(n, "run")} passed${traced ? ", has a trace" : ""}`,
      }, STATES[code][1]));
    })));
  const scroll = h("div", { class: "scroll tall" }, h("table", { class: `grid-table${table.rounds.length > 16 ? " narrow" : ""}` },
    h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "task"), groups ? h("th", { scope: "col", class: "group" }, "kind") : null, table.rounds.map((round) => h("th", { scope: "col" }, round)))),
    h("tbody", {}, body)));
  const first = scroll.querySelector("button");
  if (first) first.tabIndex = 0; // one stop for the tab key; the arrows move inside
  scroll.addEventListener("click", (event) => {
    const button = event.target.closest("button");
    if (button) openCell(one, table, +button.dataset.row, +button.dataset.column);
  });
  scroll.addEventListener("keydown", (event) => moveInGrid(event, scroll));
  const told = (event) => {
    const button = event.target.closest("button");
    if (!button) return tip.hide();
    const [row, column] = [+button.dataset.row, +button.dataset.column];
    const code = table.states[row][column];
    const rect = button.getBoundingClientRect();
    tip.show(rect.right, rect.top, data.tasks[table.tasks[row]].name, [[`round ${table.rounds[column]}`, STATES[code][0]], ["passed", `${table.passed[row][column]} of ${table.n[row][column]}`]]);
  };
  scroll.addEventListener("pointerover", told);
  scroll.addEventListener("focusin", told);
  for (const away of ["pointerleave", "focusout", "scroll"]) scroll.addEventListener(away, () => tip.hide());
  return scroll;
}

function moveInGrid(event, scroll) {
  const moves = { ArrowRight: [0, 1], ArrowLeft: [0, -1], ArrowDown: [1, 0], ArrowUp: [-1, 0] };
  const at = document.activeElement;
  if (!(event.key in moves) || !scroll.contains(at) || at.tagName !== "BUTTON") return;
  event.preventDefault();
  const [down, right] = moves[event.key];
  const rows = [...scroll.querySelectorAll("tbody tr")];
  const place = [...at.closest("tr").children].indexOf(at.closest("td"));
  let [row, column] = [rows.indexOf(at.closest("tr")), place];
  do { row += down; column += right; } while (rows[row]?.children[column] && !rows[row].children[column].querySelector("button"));
  const next = rows[row]?.children[column]?.querySelector("button");
  if (!next) return;
  at.tabIndex = -1;
  next.tabIndex = 0;
  next.focus();
}
