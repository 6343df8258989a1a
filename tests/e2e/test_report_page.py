"""The report in a real browser: it draws everything, answers clicks and keys, and logs no error."""

from __future__ import annotations

import re
import threading

import pytest
from browser import BROWSER, browser
from evolved_runs import evolve_run
from synthetic_runs import add_events, add_matrix, make_run

from coevo.report import write_report
from coevo.report.serve import HOST, PageServer, Source

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(BROWSER is None, reason="no chromium or google-chrome on PATH"),
]

UNDRAWN = """[...document.querySelectorAll(".chart")].filter((c) => !c.querySelector("svg"))
    .map((c) => c.getAttribute("aria-label")).join("; ")"""
UNNAMED = """[...document.querySelectorAll("[tabindex='0']")]
    .filter((n) => !n.getAttribute("aria-label")).map((n) => n.outerHTML.slice(0, 80)).join("; ")"""
PICK = """(() => { const box = document.querySelectorAll("#tasks select")[%d];
    box.value = "%s"; box.dispatchEvent(new Event("change")); })()"""


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    with browser(tmp_path_factory.mktemp("profile")) as tab:
        yield tab


@pytest.fixture(scope="module")
def four(tmp_path_factory):
    """A report on four arms, the last with real evolution and traces."""
    root = tmp_path_factory.mktemp("four")
    runs = [make_run(root / "runs", arm) for arm in ("frozen", "harness", "model", "coevolve")]
    add_events(add_matrix(evolve_run(runs[-1])))
    return write_report(runs, root / "report.html", title="demo")


def check_whole(page):
    """Every chart is drawn, open or not, and nothing is wider than the page or has no name."""
    page.js("for (const d of document.querySelectorAll('details')) d.open = true")
    page.until(f"({UNDRAWN}) === ''")
    root = "document.documentElement"
    assert page.js(f"{root}.scrollWidth - {root}.clientWidth") == 0
    assert page.js(UNNAMED) == ""
    assert not page.js(
        "[...document.querySelectorAll('svg')].some((n) => n.outerHTML.includes('NaN'))"
    )
    assert page.console == []


@pytest.mark.parametrize(("width", "dark"), [(1280, False), (390, True)])
def test_four_arms_draw_every_section_without_a_console_line(page, four, width, dark):
    assert four.stat().st_size < 3_000_000
    page.open(four.as_uri(), width, dark=dark)
    sections = page.js("[...document.querySelectorAll('main > section')].map((one) => one.id)")
    assert sections == ["heldout", "arms", "matrix", "tasks", "lineage", "buffer", "training", "cost",
                        "events", "config"]  # fmt: skip
    assert page.js("document.querySelectorAll('.card').length") == 4
    main = page.text("main")
    assert "✓ applied" in main
    assert "✕ rejected" in main
    assert "</script><script>alert" in main
    check_whole(page)


def test_keys_read_the_values_of_a_chart(page, four):
    page.open(four.as_uri(), 1280)
    page.js("document.querySelector('#heldout .chart').focus()")
    page.key("ArrowRight")
    page.key("ArrowRight")
    assert page.text("#tip").startswith("round 1")
    page.key("End")
    assert page.text("#tip").startswith("round 5")
    assert "Co-evolution" in page.text("#tip")
    page.key("Escape")
    assert page.js("document.getElementById('tip').hidden")
    page.js("document.querySelector('.forest .chart').focus()")
    assert "McNemar" in page.text("#tip")


@pytest.mark.parametrize("width", [1280, 390])
def test_a_click_on_a_cell_shows_both_traces_of_a_run_that_failed_and_one_that_passed(
    page, four, width
):
    page.open(four.as_uri(), width)
    label = page.js("document.querySelector('#tasks button.cell.r').getAttribute('aria-label')")
    assert re.search(r"regressed, 0 of 4 runs passed$", label)
    page.click("#tasks button.cell.r")
    assert "Held-out episodes keep no trace" in page.text("#trace")
    page.click("#trace .close")
    assert not page.js("document.getElementById('trace').open")
    before = page.js("document.activeElement.dataset.column")
    page.key("ArrowLeft")
    assert int(page.js("document.activeElement.dataset.column")) < int(before)

    page.js(PICK % (1, "evolve"))
    page.js(PICK % (2, "flipping"))
    assert 0 < page.js("document.querySelectorAll('#tasks tbody tr').length") < 24
    page.click("#tasks button.cell.f")
    page.until("document.querySelectorAll('#trace .tabs button').length === 2")
    assert "✕ failed" in page.text("#trace")
    page.click("#trace .tabs button", 1)
    assert "✓ passed" in page.text("#trace")
    page.click("#trace .step summary")
    assert "You see" in page.text("#trace .step details")
    assert "menu before modeltransform2 µs" in page.text("#trace .calls")
    assert "<b>note</b> 0" in page.text("#trace .calls")
    assert page.js("document.querySelector('.trace-body').scrollWidth") <= width
    page.key("Escape")
    page.click("#trace .close")
    assert page.console == []


def test_the_matrix_tells_a_cell_and_the_parts_of_the_gain(page, four):
    page.open(four.as_uri(), 390)
    assert page.js("document.querySelectorAll('#matrix .heat').length") == 9
    page.js("document.querySelectorAll('#matrix .heat')[5].focus()")
    assert re.search(
        r"^H1 · M5success\d+.*95%, Wilson.*measured bycoevo matrix$", page.text("#tip")
    )
    labels = page.js("""[...document.querySelectorAll("#matrix .forest .chart")]
        .map((one) => one.getAttribute("aria-label"))""")
    assert [label.partition(":")[0] for label in labels] == [
        "Total", "Harness", "Model", "Interaction", "Harness alone", "Model alone",
    ]  # fmt: skip


def test_attempts_and_faults_are_told_with_the_work_that_was_lost(page, four):
    page.open(four.as_uri(), 1280)
    events = page.text("#events")
    assert "3 attempts, 1 killed, 18 s of work lost, 1 worker replaced" in events
    assert "<i>killed</i>" in events
    page.until("document.querySelectorAll('#events .chart rect').length === 5")


def test_a_candidate_opens_on_its_diff_prediction_and_numbers(page, four):
    page.open(four.as_uri(), 1280)
    page.click("#lineage .candidate.good summary")
    told = page.text("#lineage .candidate.good details")
    assert "add goal_filter (control_flow" in told
    assert "tasks unlocked" in told
    assert "predicted tasks improved" in told
    assert "z needed" in told


def test_seeds_and_a_single_unfinished_run_draw_too(page, tmp_path):
    runs = [
        make_run(tmp_path / "a", arm, seed=s) for arm in ("harness", "coevolve") for s in (0, 1)
    ]
    page.open(write_report(runs, tmp_path / "seeds.html").as_uri(), 1280)
    assert "Co-evolution, seed 1" in page.text("main")
    check_whole(page)

    single = make_run(tmp_path / "b", "frozen", rounds=1, finished=False)
    (single / "heldout" / "0001.json").write_text("{")
    page.open(write_report([single], tmp_path / "single.html").as_uri(), 1280)
    assert "(unfinished)" in page.text("#cards")
    assert page.text("#headline") == "Frozen was evaluated once."
    assert "1 problem" in page.text("#problems")
    assert "frozen-0/heldout/0001.json" in page.text("#problems")
    check_whole(page)


def test_a_watched_page_follows_the_run_and_leaves_the_reader_in_place(page, tmp_path):
    run = evolve_run(make_run(tmp_path / "runs", "coevolve", rounds=4, finished=False))
    whole = (run / "metrics.jsonl").read_bytes()
    (run / "metrics.jsonl").write_bytes(b"".join(whole.splitlines(keepends=True)[:3]))
    with PageServer(Source([run], every=1), 0) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        page.open(f"http://{HOST}:{server.server_port}/", 390)
        assert "3 of ? rounds" in page.text("#live")
        page.click("#lineage .candidate details summary")
        page.js("document.getElementById('training').scrollIntoView({behavior: 'instant'})")
        page.until("document.querySelectorAll('#training svg').length > 5")
        top = "Math.round(document.getElementById('training').getBoundingClientRect().top)"
        before = page.js(top)
        (run / "metrics.jsonl").write_bytes(whole)
        page.until("document.getElementById('live').textContent.includes('4 of ? rounds')")
        page.until(f"Math.abs({top} - {before}) <= 2")
        assert page.js("document.querySelector('#lineage .candidate details').open")

        page.js(PICK % (1, "evolve"))
        page.click("#tasks button.cell.f")
        page.until("document.querySelectorAll('#trace .tabs button').length === 2")
        assert "Harness trace" in page.text("#trace")
        page.click("#trace .close")
        assert page.console == []

        server.shutdown()
        server.server_close()
        page.until("document.getElementById('live').textContent.startsWith('No answer')")
        page.console.clear()  # the browser's own line on the refused connection
