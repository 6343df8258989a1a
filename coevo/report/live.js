"use strict";
// A page that is served asks for news and draws itself anew, leaving the reader where they were.

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

const clock = () => new Date().toLocaleTimeString();

function say(text, bad = false) {
  const line = document.getElementById("live");
  line.hidden = false;
  line.classList.toggle("bad", bad);
  line.textContent = text;
}

function progress() {
  const going = runs.filter(({ run }) => !run.finished);
  const told = going.map(({ arm, run }) => `${runTitle(arm, run)}: ${run.rounds.length} of ${run.asked_rounds ?? "?"} rounds${run.going.length ? `, of the next ${run.going.join(", ")}` : ""}`);
  return told.length ? told.join(" · ") : "All runs are finished.";
}

function watch() {
  let etag = null;
  let read = clock();
  say(`Live, read at ${read}. ${progress()}`);
  const ask = async () => {
    if (document.hidden) return;
    let answer;
    try {
      answer = await fetch("data.json", { headers: etag ? { "If-None-Match": etag } : {}, cache: "no-store" });
    } catch {
      return say(`No answer since ${read}: coevo watch has ended, or the connection is gone. The page shows what it knew then.`, true);
    }
    if (answer.status === 304) return say(`Live, nothing new since ${read}. ${progress()}`);
    if (!answer.ok) return say(`The runs cannot be read now: ${await answer.text()}`, true);
    const first = etag === null;
    etag = answer.headers.get("ETag");
    const next = await answer.json();
    if (first && JSON.stringify(next) === JSON.stringify(data)) return;
    read = clock();
    redraw(next);
    say(`Live, read at ${read}. ${progress()}`);
  };
  const again = () => ask().finally(() => setTimeout(again, 1000 * data.live.every));
  setTimeout(again, 1000 * data.live.every);
  document.addEventListener("visibilitychange", ask);
}
