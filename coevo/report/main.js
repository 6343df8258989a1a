"use strict";
// Draws the page; where it is served live, draws it anew when the run has moved on.

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
  for (const part of [problems, cards, curves, comparison, grid, lineage, buffer, training, cost, configuration]) part();
}

// Redraws and leaves the reader where they were: folds, scroll position, focus.
function redraw(next) {
  const open = new Map([...document.querySelectorAll("details[data-key]")].map((one) => [one.dataset.key, one.open]));
  const inner = [...document.querySelectorAll(".scroll.tall")].map((one) => [one.scrollTop, one.scrollLeft]);
  const seen = [...document.querySelectorAll("main > section")].find((one) => one.getBoundingClientRect().bottom > 0);
  const [id, top] = [seen?.id, seen?.getBoundingClientRect().top];
  const focused = document.activeElement?.getAttribute?.("aria-label");
  const nav = document.getElementById("nav").scrollLeft;
  tip.hide();
  take(next);
  drawPage();
  for (const one of document.querySelectorAll("details[data-key]")) if (open.has(one.dataset.key)) one.open = open.get(one.dataset.key);
  document.querySelectorAll(".scroll.tall").forEach((one, i) => { if (inner[i]) [one.scrollTop, one.scrollLeft] = inner[i]; });
  document.getElementById("nav").scrollLeft = nav;
  if (focused) [...document.querySelectorAll("[aria-label]")].find((one) => one.getAttribute("aria-label") === focused)?.focus({ preventScroll: true });
  // Charts take their height when they are drawn, a frame or two later.
  const settle = (left) => {
    const again = id && document.getElementById(id);
    if (again) window.scrollBy({ top: again.getBoundingClientRect().top - top, behavior: "instant" });
    if (left) requestAnimationFrame(() => settle(left - 1));
  };
  settle(4);
}

take(JSON.parse(document.getElementById("data").textContent));
drawPage();
