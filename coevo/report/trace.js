"use strict";
// The traces of a cell's runs in a dialog: agent trace and harness trace side by side, step by step.

async function unpack(text) {
  const bytes = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).json();
}

// Every trace that can be shown of a cell: from the page, or asked of the server that serves it.
async function tracesOf(one, key, round) {
  if (data.live) {
    const answer = await fetch(`trace?run=${one.index}&task=${encodeURIComponent(key)}&round=${round}`);
    if (!answer.ok) throw new Error(await answer.text());
    return answer.json();
  }
  const chunks = data.traces.chunks.filter((chunk) => chunk.run === one.index && chunk.round === round && chunk.tasks.includes(key));
  const found = await Promise.all(chunks.map((chunk) => unpack(chunk.data)));
  return found.flat().filter((item) => item.task === key);
}

async function openCell(one, table, row, column) {
  const task = data.tasks[table.tasks[row]];
  const round = table.rounds[column];
  const code = table.states[row][column];
  const dialog = document.getElementById("trace");
  const [passed, n] = [table.passed[row][column], table.n[row][column]];
  const close = h("button", { class: "close", "aria-label": "Close" }, "✕");
  close.addEventListener("click", () => dialog.close());
  const body = h("div", { class: "trace-body" });
  dialog.replaceChildren(
    h("div", { class: "trace-head" }, h("div", {}, h("h2", { id: "trace-title" }, task.name),
      h("p", { class: "sub" }, `${runTitle(one.arm, one.run)}, round ${round}: `, h("span", { class: `cell ${code} key` }, STATES[code][1]), ` ${STATES[code][0]}, ${passed} of ${several(n, "run")} passed`)), close),
    body);
  dialog.showModal();
  if (table.split !== "evolve") {
    body.append(h("p", {}, "Held-out episodes keep no trace, so that nothing can learn from them."));
    return;
  }
  body.append(h("p", { class: "note" }, "Reading …"));
  let found;
  try {
    found = await tracesOf(one, task.key, round);
  } catch (error) {
    body.replaceChildren(h("p", { class: "note" }, `The traces cannot be read: ${error.message}`));
    return;
  }
  if (!found.length) {
    body.replaceChildren(h("p", {}, "No trace of this cell is in this page: ",
      data.live ? "the run kept none." : "it holds the ones that show most, up to its limit."),
      h("p", { class: "note" }, `All traces of the round are in ${one.run.name}/traces/${String(round).padStart(4, "0")}/incumbent.jsonl.gz; coevo watch shows any of them.`));
    return;
  }
  const show = (item) => body.replaceChildren(tabs(found, item, show), episode(item, n, found.length));
  show(found[0]);
}

function tabs(found, at, show) {
  if (found.length < 2) return null;
  return h("div", { class: "tabs", role: "group", "aria-label": "Runs of this task" }, found.map((item, i) => {
    const button = h("button", { "aria-pressed": String(item === at) }, `run ${i + 1}: ${item.success ? "passed" : "failed"}`);
    button.addEventListener("click", () => show(item));
    return button;
  }));
}

function episode(item, n, here) {
  const { trace } = item;
  const dropped = [["agent", "of the agent trace"], ["harness", "of the harness trace"]].filter(([name]) => trace.dropped[name]).map(([name, of]) => `${trace.dropped[name]} entries ${of} were left out`);
  const notes = [here < n && !data.live ? `${here} of this cell's ${n} runs are in the page.` : "", dropped.join(", "),
    trace.level !== "full" ? "The run kept no harness trace (its trace level is below full)." : ""].filter(Boolean);
  return h("div", {},
    h("p", {}, badge(item.success ? "good" : "bad", item.success ? "✓ passed" : "✕ failed"), ` reward ${number(item.reward)} · ${item.outcome.replaceAll("_", " ")} · ${several(trace.steps.length, "step")} · ${number(item.tokens)} tokens · harness `, short(item.harness_id)),
    h("p", { class: "sub" }, trace.reason), notes.length ? h("p", { class: "note" }, notes.join(" ")) : null,
    h("div", { class: "step heads", "aria-hidden": "true" }, h("b", {}, "Agent trace"), h("b", {}, "Harness trace")),
    trace.steps.map(stepOf),
    h("p", { class: "note" }, item.ref));
}

const stepOf = (step) => h("div", { class: "step" },
  h("div", { class: "agent" }, h("span", { class: "step-number" }, `step ${step.step}`), step.agent.map((entry) => ("tool" in entry ? toolEntry(entry) : modelEntry(entry)))),
  h("div", { class: "calls" }, processorCalls(step.harness), step.functions.map(functionCall), step.notes.map(([component, text]) => h("p", { class: "sub" }, h("b", {}, component), ` ${text}`))));

function modelEntry(entry) {
  const kept = entry.kept ? `${several(entry.kept, "message")} as before, then` : "read";
  return h("div", {},
    h("details", {}, h("summary", {}, `${entry.role === "main" ? "model" : entry.role} ${kept} ${several(entry.read.length, "new message")}, ${entry.tokens[0]} tokens`),
      entry.read.map(([role, content]) => h("div", { class: "message" }, h("b", {}, role), h("div", { class: "text" }, content)))),
    h("div", { class: "said" }, entry.said || (entry.calls.length ? null : h("i", {}, "nothing")), entry.calls.map(([name, input]) => h("div", {}, h("b", {}, name), ` ${input}`))),
    entry.finish !== "stop" && entry.finish !== "tool_calls" ? h("p", { class: "sub" }, `ended by ${entry.finish}`) : null);
}

const toolEntry = (entry) => h("div", { class: `result${entry.error ? " error" : ""}` },
  h("span", { class: "sub" }, `${entry.tool}${entry.error ? ", error" : ""}${entry.done ? ", done" : ""}`), h("div", { class: "text" }, entry.result));

// Calls that passed their event untouched are counted; those that did something are named.
function processorCalls(calls) {
  if (!calls.length) return null;
  const told = calls.filter(([, , outcome]) => outcome !== "pass");
  const quiet = calls.length - told.length;
  const kind = (outcome) => (outcome === "error" || outcome === "violation" ? "bad" : "flat");
  return [
    told.map(([hook, component, outcome, us, exception]) => h("div", { class: "call" }, h("span", {}, h("b", {}, component), h("span", { class: "sub" }, ` ${hook.replaceAll("_", " ")}`)),
      badge(kind(outcome), outcome), h("span", { class: "sub num" }, us >= 1000 ? `${(us / 1000).toFixed(1)} ms` : `${us.toFixed(0)} µs`), exception ? h("span", { class: "exception" }, exception) : null)),
    quiet ? h("p", { class: "sub" }, `${several(quiet, "call")} passed the event on: ${[...new Set(calls.filter(([, , outcome]) => outcome === "pass").map(([, component]) => component))].join(", ")}`) : null,
  ];
}

const functionCall = ([name, given, result]) => h("p", { class: "sub" }, h("b", {}, name), ` ${typeof given === "string" ? given : JSON.stringify(given)} → ${typeof result === "string" ? result : JSON.stringify(result)}`);
