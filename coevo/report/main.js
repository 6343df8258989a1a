"use strict";
// Draws the page.

function problems() {
  const box = document.getElementById("problems");
  box.hidden = !data.problems.length;
  box.replaceChildren(h("h2", {}, `${several(data.problems.length, "problem")} in what was read`),
    h("ul", {}, data.problems.map((text) => h("li", {}, text))), h("p", { class: "note" }, "The rest is shown."));
}

function drawPage() {
  for (const id of ["cards", "nav", "main"]) document.getElementById(id).replaceChildren();
  document.getElementById("headline").textContent = data.headline;
  document.getElementById("verdict").textContent = data.paragraph;
  for (const part of [problems, cards, curves, comparison, matrix, grid, lineage, buffer, training, cost, events, configuration]) part();
}

take(JSON.parse(document.getElementById("data").textContent));
drawPage();
if (data.live) watch();
