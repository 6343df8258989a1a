"use strict";
// What happened to each run: attempts on a time line, and every resumption, requeue and fault.

const clockOf = (time) => new Date(1000 * time).toISOString().replace("T", " ").slice(0, 19);

// One bar an attempt: what it did, and in another colour the work that was lost with it.
function timeline(found) {
  const starts = found.attempts.map((one) => one.started);
  const ends = found.attempts.map((one) => one.until);
  const [lo, hi] = [Math.min(...starts), Math.max(...ends, Math.min(...starts) + 1)];
  const row = 26;
  const height = row * found.attempts.length + 30;
  const box = h("div", { class: "chart", tabindex: 0, role: "img", style: `min-height:${height}px`, "aria-label": `Time line of ${several(found.attempts.length, "attempt")}: ${found.summary}` });
  onWidth(box, (width) => {
    const [left, right] = [26, width - 12];
    const x = (time) => left + ((time - lo) / (hi - lo)) * (right - left);
    const svg = s("svg", { viewBox: `0 0 ${width} ${height}`, height, "aria-hidden": "true" });
    for (const [t, text] of timeTicks(hi - lo, width < 500 ? 3 : 6)) {
      svg.append(s("line", { class: "grid", x1: x(lo + t), x2: x(lo + t), y1: 4, y2: height - 24 }),
        s("text", { x: x(lo + t), y: height - 8, "text-anchor": "middle" }, text));
    }
    found.attempts.forEach((one, i) => {
      const y = i * row + 6;
      const kept = one.until - (one.lost_s || 0);
      svg.append(s("text", { x: left - 10, y: y + 13, "text-anchor": "end" }, one.number),
        s("rect", { x: x(one.started), y, width: Math.max(2, x(kept) - x(one.started)), height: 16, rx: 3, fill: "var(--q0)" }));
      if (one.lost_s) svg.append(s("rect", { x: x(kept), y, width: Math.max(2, x(one.until) - x(kept)), height: 16, rx: 3, fill: "var(--t-r)" }));
    });
    for (const one of found.events.filter((event) => event.fault)) {
      const i = Math.max(0, found.attempts.findIndex((attempt) => attempt.number === one.attempt));
      svg.append(s("path", { d: `M${x(Math.min(Math.max(one.time, lo), hi))} ${i * row + 1}l6 11h-12z`, fill: "var(--ink)", stroke: "var(--panel)", "stroke-width": 1.5 }));
    }
    box.replaceChildren(svg);
  });
  return box;
}

function events() {
  const told = eachRun((arm, run, index) => {
    const found = run.events;
    if (!found) return null;
    const rows = found.attempts.map((one) => [one.number, clockOf(one.started), seconds(one.until - one.started), one.phases,
      one.going ? "going, or not known" : `${one.reason}${known(one.code) ? ` (exit ${one.code})` : ""}`, known(one.lost_s) ? seconds(one.lost_s) : "–", known(one.down_s) ? seconds(one.down_s) : "–"]);
    const box = fold(`events/${index}`, `${runTitle(arm, run)}: ${found.summary}`,
      found.attempts.length ? [timeline(found), tableOf(["attempt", "began, UTC", "lasted", "phases done", "ended", "work lost", "down before the next"], rows)] : null,
      found.events.length ? fold(`events/${index}/all`, `Every event (${several(found.events.length, "event")})`,
        found.left_out ? h("p", { class: "note" }, `The newest; ${found.left_out} older ones are in events.jsonl.`) : null,
        tableOf(["time, UTC", "attempt", "what", ""], found.events.map((one) => [clockOf(one.time), one.attempt || "–", one.kind.replaceAll("_", " "), h("span", { class: "told" }, one.text)]))) : null);
    box.open = found.attempts.length > 1 || found.events.some((one) => one.fault);
    return box;
  });
  section("events", "Attempts and faults", "Each process that worked on a run: how long, how it ended, and the work that was lost with it (red), which is what had been done since the last finished phase. Triangles are faults that the run lived through.", told);
}
