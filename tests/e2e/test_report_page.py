"""The report in a real browser: it draws everything, answers the keyboard, and logs no error."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from evolved_runs import evolve_run
from synthetic_runs import make_run

from coevo.report import write_report

BROWSER = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(BROWSER is None, reason="no chromium or google-chrome on PATH"),
]

DRIVE = """
<script>
function note(name, value) {
  const node = document.createElement("p");
  node.className = "probe"; node.id = "probe-" + name; node.textContent = value;
  document.body.append(node);
}
setTimeout(() => {
  const tip = document.getElementById("tip");
  const chart = document.querySelector("#heldout .chart");
  note("hidden", tip.hidden);
  chart.focus();
  const press = (key) => chart.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true, cancelable: true }));
  press("ArrowRight"); press("ArrowRight");
  note("second", tip.textContent);
  press("End");
  note("last", tip.textContent);
  press("Escape");
  note("escaped", tip.hidden);
  const row = document.querySelector(".forest .chart");
  if (row) { row.focus(); note("forest", tip.textContent); row.blur(); }
  const cell = document.querySelector("#tasks button.cell.r");
  if (cell) {
    cell.focus();
    note("cell", cell.getAttribute("aria-label") + " / " + tip.textContent);
    const before = document.activeElement;
    cell.dispatchEvent(new KeyboardEvent("keydown", { key: "ArrowLeft", bubbles: true, cancelable: true }));
    note("moved", document.activeElement !== before && document.activeElement.classList.contains("cell"));
    cell.click();
    note("heldout-trace", document.getElementById("trace").textContent);
    document.querySelector("#trace .close").click();
    note("closed", !document.getElementById("trace").open);
  }
  const pick = (at, value) => {
    const box = document.querySelectorAll("#tasks select")[at];
    if (!box || ![...box.options].some((one) => one.value === value)) return false;
    box.value = value;
    box.dispatchEvent(new Event("change"));
    return true;
  };
  if (pick(1, "evolve")) {
    pick(2, "flipping");
    note("filtered", document.querySelectorAll("#tasks tbody tr").length);
    document.querySelector("#tasks button.cell.f").click();
  }
  setTimeout(() => {
    const dialog = document.getElementById("trace");
    if (!dialog.open) return;
    note("trace", dialog.textContent);
    const other = [...dialog.querySelectorAll(".tabs button")].find((one) => one.getAttribute("aria-pressed") === "false");
    if (other) { other.click(); note("other-trace", dialog.textContent); }
    for (const details of dialog.querySelectorAll("details")) details.open = true;
    note("trace-overflow", dialog.querySelector(".trace-body").scrollWidth - dialog.querySelector(".trace-body").clientWidth);
    dialog.close();
  }, 500);
  for (const details of document.querySelectorAll("details")) details.open = true;
  setTimeout(() => {
    const empty = [...document.querySelectorAll(".chart")].filter((c) => !c.querySelector("svg"));
    note("undrawn", empty.map((c) => c.getAttribute("aria-label")).join("; "));
    note("overflow", document.documentElement.scrollWidth - document.documentElement.clientWidth);
    const unnamed = [...document.querySelectorAll("[tabindex='0']")].filter((n) => !n.getAttribute("aria-label")).length;
    note("unnamed", unnamed);
    note("nan", [...document.querySelectorAll("svg")].some((n) => n.outerHTML.includes("NaN")));
  }, 800);
}, 800);
</script>
</body>"""


def browse(page: Path, profile: Path, width: int) -> tuple[str, list[str]]:
    """DOM after scripts ran, and the lines that the page wrote to the console."""
    assert BROWSER is not None
    done = subprocess.run(
        [
            BROWSER,
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-quic",
            "--no-first-run",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
            f"--user-data-dir={profile}",
            f"--window-size={width},900",
            "--enable-logging=stderr",
            "--virtual-time-budget=6000",
            "--dump-dom",
            page.as_uri(),
        ],
        capture_output=True,
        text=True,
        timeout=180,
        check=True,
    )
    console = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    return done.stdout, console


def probe(dom: str, name: str) -> str:
    found = re.search(rf'id="probe-{name}">([^<]*)<', dom)
    assert found, f"the page did not get as far as {name}"
    return found.group(1)


@pytest.fixture
def driven(tmp_path):
    def write(runs: list[Path]) -> Path:
        out = write_report(runs, tmp_path / "report.html", title="demo")
        out.write_text(out.read_text().replace("</body>", DRIVE))
        return out

    return write


@pytest.mark.parametrize("width", [1280, 500])  # 500 is the narrowest window that it opens
def test_four_arms_draw_every_section_without_a_console_line(tmp_path, driven, width):
    runs = [make_run(tmp_path / "runs", arm) for arm in ("frozen", "harness", "model", "coevolve")]
    evolve_run(runs[-1])
    dom, console = browse(driven(runs), tmp_path / "profile", width)
    assert console == []
    for section in ("heldout", "arms", "tasks", "lineage", "buffer", "training", "cost", "config"):
        assert f'<section id="{section}"' in dom
    assert dom.count('class="card"') == 4
    assert "✓ applied" in dom
    assert "✕ rejected" in dom
    assert "&lt;/script&gt;&lt;script&gt;alert" in dom
    assert probe(dom, "hidden") == "true"
    assert probe(dom, "second").startswith("round 1")
    assert "Co-evolution" in probe(dom, "last")
    assert probe(dom, "last").startswith("round 5")
    assert probe(dom, "escaped") == "true"
    assert "McNemar" in probe(dom, "forest")
    assert re.search(r"regressed, 0 of 4 runs passed / .*passed0 of 4", probe(dom, "cell"))
    assert probe(dom, "moved") == "true"
    assert "Held-out episodes keep no trace" in probe(dom, "heldout-trace")
    assert probe(dom, "closed") == "true"
    assert 0 < int(probe(dom, "filtered")) < 24
    assert "✕ failed" in probe(dom, "trace")
    assert "menu before modeltransform2 µs" in probe(dom, "trace")
    assert "✓ passed" in probe(dom, "other-trace")
    assert probe(dom, "trace-overflow") == "0"
    assert "add goal_filter (control_flow" in dom
    assert "tasks unlocked" in dom
    assert probe(dom, "overflow") == "0"
    assert probe(dom, "undrawn") == ""
    assert probe(dom, "unnamed") == "0"
    assert probe(dom, "nan") == "false"


def test_seeds_and_a_single_unfinished_run_draw_too(tmp_path, driven):
    runs = [
        make_run(tmp_path / "a", arm, seed=s) for arm in ("harness", "coevolve") for s in (0, 1)
    ]
    dom, console = browse(driven(runs), tmp_path / "profile", 1280)
    assert console == []
    assert "Co-evolution, seed 1" in dom
    assert probe(dom, "undrawn") == ""

    single = make_run(tmp_path / "b", "frozen", rounds=1, finished=False)
    dom, console = browse(driven([single]), tmp_path / "profile", 1280)
    assert console == []
    assert "(unfinished)" in dom
    assert "Frozen was evaluated once." in dom
    assert probe(dom, "nan") == "false"
