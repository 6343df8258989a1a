"use strict";
// Cards, curves, comparison, buffer, training, cost and configuration.

function cards() {
  const reference = byKey[data.reference];
  document.getElementById("cards").append(...arms.map((arm) => {
    const pair = data.pairs.find((p) => p.a === arm.key && p.b === data.reference);
    const last = arm.final;
    return h("div", { class: "card", style: `--c:${armColour(arm.slot)}` },
      h("h3", {}, arm.label, arm.finished ? "" : " (unfinished)"),
      h("p", { class: "big" }, last ? pct(last.success) : "–"),
      h("p", { class: "small" }, last ? `${last.successes} of ${last.n} · 95%: ${percentage(last.lo)}–${percentage(last.hi)}` : "not evaluated"),
      h("p", { class: "small" }, arm.initial && arm.gain ? `started at ${pct(arm.initial.success)}` : last ? "one evaluation" : ""),
      pair ? conclusion(pair, reference.label.toLowerCase())
        : arms.length > 1 && h("span", { class: "badge flat" }, "reference"));
  }));
}

function curves() {
  const line = (curve) => Object.entries(curve).filter(([, r]) => r && known(r.success))
    .map(([round, r]) => ({ x: +round, y: r.success, lo: r.lo, hi: r.hi, text: `${interval(r)}, n=${r.n}` }));
  const shown = arms.filter((arm) => line(arm.curve).length);
  if (!shown.length) return;
  const pooled = shown.map((arm) => ({ label: arm.label, slot: arm.slot, points: line(arm.curve) }));
  const single = shown.filter((arm) => arm.runs.length > 1).flatMap((arm) => arm.runs.map((run) =>
    ({ label: "", slot: arm.slot, faint: true, points: line(run.heldout).map(({ x, y }) => ({ x, y })) })));
  const all = pooled.flatMap((one) => one.points);
  const lo = Math.max(0, Math.floor(Math.min(...all.map((p) => p.lo)) * 10) / 10);
  const hi = Math.min(1, Math.ceil(Math.max(...all.map((p) => p.hi)) * 10) / 10);
  const practice = shown.map((arm) => ({ label: arm.label, slot: arm.slot, points: arm.runs[0].rounds.filter((r) => known(r.evolve.success))
    .map((r) => ({ x: r.round, y: r.evolve.success, text: `${pct(r.evolve.success)}, n=${r.evolve.n}` })) })).filter((one) => one.points.length);
  section("heldout", "Held-out success",
    `Share of held-out episodes solved at each round. Bands are 95% intervals of the rate alone; for a difference between arms read the paired intervals below${single.length ? ". Thin lines are single seeds" : ""}.`,
    armLegend(shown),
    lineChart({ label: "Held-out success by round", series: [...single, ...pooled], format: (v) => pct(v, 0), domain: [lo, hi], height: 340, names: true }),
    practice.length ? fold("heldout/evolve", "Success on the tasks it learns from",
      h("p", { class: "note" }, `Other tasks each round, so that this curve is noisier and no measure of the result${arms.some((a) => a.runs.length > 1) ? "; first seed of each arm" : ""}.`),
      lineChart({ label: "Success on evolve tasks by round", series: practice, format: (v) => pct(v, 0), domain: [0, 1], height: 220 })) : null);
}

function comparison() {
  const rows = arms.map((arm) => [
    arm.label, arm.runs.length, interval(arm.initial), interval(arm.final),
    arm.gain ? h("span", {}, `${points(arm.gain.mean)} [${points(arm.gain.lo)}, ${points(arm.gain.hi)}] `, conclusion(arm.gain)) : "–",
    arm.best ? `${pct(arm.best.success)} (round ${arm.best_round})` : "–", number(arm.per_point.tokens)]);
  const pairs = data.pairs.map((pair) => ({
    ...pair, slot: byKey[pair.a].slot, firm: ["above", "below"].includes(pair.conclusion),
    name: `${byKey[pair.a].label} − ${byKey[pair.b].label}`, text: `${range(pair)} ${CONCLUSIONS[pair.conclusion][1]}`,
    tip: [["difference", range(pair)], ["tasks", pair.tasks], ["pairs", pair.pairs], [`only ${byKey[pair.a].label} solved`, pair.only_a],
      [`only ${byKey[pair.b].label} solved`, pair.only_b], ["McNemar, exact", `p = ${number(pair.p, 2)}`], ...(pair.by_seed.length > 1 ? pair.by_seed.map(([seed, mean]) => [`seed ${seed}`, points(mean)]) : [])],
  }));
  section("arms", "Arms compared",
    `Last evaluation of each arm. Differences are paired by task and seed, in percentage points, with a 95% bootstrap interval over tasks${arms.some((a) => a.runs.length > 1) ? " and run seeds" : ""}; a hollow mark means that the interval includes 0.`,
    pairs.length ? forest(pairs) : null,
    tableOf(["arm", "runs", "start", "final, 95%", "gain over its start, points", "best (optimistic)", "tokens a point"], rows),
    pairs.length ? fold("arms/pairs", "Show the paired numbers", tableOf(
      ["pair", "difference", "95% interval", "only first solved", "only second solved", "McNemar p", "tasks", "pairs", "reading"],
      pairs.map((p) => [p.name, points(p.mean), `[${points(p.lo)}, ${points(p.hi)}]`, p.only_a, p.only_b, number(p.p, 2), p.tasks, p.pairs, conclusion(p)]))) : null,
    otherSplits(), repeatedRuns(),
    data.notes.map((note) => h("p", { class: "note" }, note)));
}

const SPLITS = { heldout: "held-out tasks", evolve: "tasks it learns from", valid_seen: "seen rooms", ood: "out of distribution" };

function otherSplits() {
  const rows = arms.flatMap((arm) => arm.others.map((one) => [arm.label, SPLITS[one.split] || one.split, interval(one.initial), interval(one.final), one.best ? `${pct(one.best.success)} (round ${one.best_round})` : "–",
    one.gain ? h("span", {}, `${points(one.gain.mean)} [${points(one.gain.lo)}, ${points(one.gain.hi)}] `, conclusion(one.gain)) : "–"]));
  return rows.length ? fold("arms/splits", "Other splits", tableOf(["arm", "split", "start", "final, 95%", "best (optimistic)", "gain, points"], rows)) : null;
}

function repeatedRuns() {
  const rows = arms.flatMap((arm) => arm.repeats.map((one) => [arm.label, SPLITS[one.split] || one.split, one.k, pct(one.pass_at_1), pct(one.pass_at_k), pct(one.pass_hat_k), pct(one.flips), one.tasks]));
  return rows.length ? fold("arms/repeats", "Tasks that ran several times: pass@k, pass^k, flip rate", tableOf(["arm", "split", "runs a task (k)", "pass@1", "pass@k", "pass^k", "flipping", "tasks"], rows)) : null;
}

function buffer() {
  const panels = eachRun((arm, run) => {
    const trained = run.rounds.filter((r) => Object.keys(r.staleness.histogram).length);
    const mixed = run.rounds.filter((r) => Object.keys(r.harness_mix).length);
    const ids = [...new Set(mixed.flatMap((r) => Object.keys(r.harness_mix)))];
    if (!trained.length && ids.length < 2) return null; // nothing trains on it and nothing is mixed
    const ages = [...new Set(trained.flatMap((r) => Object.keys(r.staleness.histogram)))].map(Number).sort((a, b) => a - b);
    return h("div", {}, h("h3", { style: "margin-top:18px" }, runTitle(arm, run)), h("div", { class: "two" },
      trained.length ? panel("Staleness", "age of what trained, in policy versions", stackedBars({
        label: `${runTitle(arm, run)}: staleness of the buffer by round`, format: number,
        bars: trained.map((r) => ({ x: r.round, values: r.staleness.histogram })),
        keys: ages.map((age) => ({ key: String(age), label: `age ${age}`, colour: `var(--s${Math.min(age, 4)})` })) })) : null,
      ids.length > 1 ? panel("Harness mix", "trajectories in the buffer by the harness that made them", stackedBars({
        label: `${runTitle(arm, run)}: harnesses in the buffer by round`, format: number,
        bars: mixed.map((r) => ({ x: r.round, values: r.harness_mix })),
        keys: ids.map((id, i) => ({ key: id, label: id.slice(0, 8), colour: `var(--q${i % 8})` })) })) : null));
  });
  section("buffer", "Replay buffer", "What the trainer learned from: how old it was, and which harnesses had made it.", panels.length ? gallery("buffer/runs", panels) : null);
}

function training() {
  const shown = arms.filter((arm) => arm.runs[0].rounds.some((r) => r.train));
  if (!shown.length) return;
  const plot = (name, title, sub, format = number) => {
    const series = shown.map((arm) => ({ label: arm.label, slot: arm.slot, points: arm.runs[0].rounds.filter((r) => r.train && known(r.train[name])).map((r) => ({ x: r.round, y: r.train[name] })) }))
      .filter((one) => one.points.length);
    return series.length ? panel(title, sub, lineChart({ label: title, series, format, height: 190, zero: name !== "kept_fraction" })) : null;
  };
  section("training", "Training health", `Means over each round's optimiser steps${arms.some((a) => a.runs.length > 1) ? ", first seed of each arm" : ""}.`,
    armLegend(shown), h("div", { class: "two" },
      plot("kl_mismatch", "Mismatch KL", "trainer against the behaviour policy, nats"),
      plot("abs_dlogp", "Mean |Δ log-prob|", "trainer against the sampler, nats"),
      plot("clip_fraction", "Clip fraction", "tokens whose ratio was clipped", (v) => pct(v)),
      plot("kept_fraction", "Kept tokens", "tokens inside the ratio mask", (v) => pct(v)),
      plot("entropy", "Entropy", "of the policy on sampled tokens, nats"),
      plot("grad_norm", "Gradient norm", "before clipping"),
      plot("loss", "Loss", "objective; its level has no meaning by itself"),
      plot("mismatch_mean", "Engine against trainer, sampled", "mean |log-prob difference| of the round's own tokens before the first step"),
      plot("mismatch_p99", "Engine against trainer, 99th percentile", "of the same"),
      plot("probe_max_abs", "Engine against trainer, published", "largest log-prob difference on the probe after publication")));
}

function cost() {
  const PHASES = ["rollout", "evolve", "train", "publish", "heldout"];
  const keys = PHASES.map((phase, i) => ({ key: phase, label: phase === "heldout" ? "held-out" : phase, colour: `var(--q${i})` }));
  const rows = arms.map((arm) => {
    const wall = PHASES.map((phase) => arm.runs.flatMap((run) => run.rounds).reduce((sum, r) => sum + r.wall[phase], 0));
    return [arm.label, number(arm.tokens.prompt), number(arm.tokens.sampled), seconds(arm.wall_s), ...wall.map(seconds)];
  });
  const panels = eachRun((arm, run) => run.rounds.length ? panel(runTitle(arm, run), "seconds a phase", stackedBars({
    label: `${runTitle(arm, run)}: wall time by phase and round`, format: seconds, share: false, height: 190,
    bars: run.rounds.map((r) => ({ x: r.round, values: Object.fromEntries(PHASES.map((p) => [p, r.wall[p]])) })), keys })) : null);
  const base = byKey[data.baseline];
  const amount = (arm, name, format) => {
    const [value, over] = [arm.budget[name], arm.over[name]];
    const share = arm !== base && known(over) && Math.abs(over) >= 0.005 ? ` (${over < 0 ? "−" : "+"}${fixed(Math.abs(100 * over), 0)}%)` : "";
    return known(value) ? `${format(value)}${share}` : "–";
  };
  const budgets = tableOf(["arm", "tasks", "episodes", "tokens to learn", "tokens to measure", "wall time", "GPU time", "tokens a point", "GPU time a point"],
    arms.map((arm) => [arm.label, amount(arm, "tasks", number), amount(arm, "episodes", number), amount(arm, "tokens", number), amount(arm, "measured_tokens", number), amount(arm, "wall_s", seconds), amount(arm, "gpu_s", seconds),
      number(arm.per_point.tokens), known(arm.per_point.gpu_s) ? seconds(arm.per_point.gpu_s) : "–"]));
  section("cost", "Budgets and cost", `What a run of each arm spent, the mean over its seeds${arms.length > 1 ? `; in brackets the difference to ${base.label.toLowerCase()}` : ""}. A point is one percentage point of held-out success gained over the start.`,
    budgets, arms.some((arm) => !known(arm.budget.tokens) || !known(arm.budget.gpu_s)) ? h("p", { class: "note" }, "–: the records of these runs do not say.") : null, h("h3", { style: "margin-top:18px" }, "By phase"), h("p", { class: "sub" }, "Summed over the runs of an arm. Phases that overlap can add up to more than the total."),
    tableOf(["arm", "prompt tokens", "sampled tokens", "wall, total", ...keys.map((k) => k.label)], rows), panels.length ? gallery("cost/runs", panels, (all) => h("div", { class: "two" }, all)) : null);
}

function configuration() {
  const names = eachRun((arm, run) => runTitle(arm, run));
  section("config", "Configuration and versions", "The resolved configuration of each run and the versions it ran with.",
    data.config_differences.length ? fold("config/differences", `Where the runs differ (${data.config_differences.length} keys)`,
      tableOf(["key", ...names], data.config_differences.map((row) => [h("code", {}, row.key), ...row.values.map((v) => h("code", {}, v))]))) : null,
    eachRun((arm, run, index) => fold(`config/${index}`, `${runTitle(arm, run)}: ${run.name}`,
      h("pre", { tabindex: 0, "aria-label": "Configuration" }, run.config), h("pre", { tabindex: 0, "aria-label": "Versions" }, run.lock))));
}

