"""The page as text: self-contained, safe against what runs hold, whole or not there."""

from __future__ import annotations

import json
import re

import pytest
from synthetic_runs import make_run

from coevo.compare import NotComparableError
from coevo.report import render_report, write_report
from coevo.report.page import embed


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    root = tmp_path_factory.mktemp("runs")
    return render_report([make_run(root, arm) for arm in ("frozen", "coevolve")], title="a <b> & c")


def _data(page):
    return json.loads(re.search(r'id="data">(.*?)</script>', page, re.DOTALL).group(1))


def test_the_page_asks_the_network_for_nothing(page):
    assert "default-src 'none'" in page
    links = set(re.findall(r"""(?:https?:)?//[\w.-]+\.\w+[^\s"'`]*""", page))
    assert links <= {"http://www.w3.org/2000/svg"}  # a namespace, never fetched
    assert re.findall(r'(?:src|href)="([^"#]+)"', page) == ["data:,"]


def test_a_script_in_an_edit_stays_text(page):
    assert "<script>alert" not in page
    edits = [
        edit
        for arm in _data(page)["arms"]
        for run in arm["runs"]
        for record in run["lineage"]["rounds"]
        for candidate in record["candidates"]
        for edit in candidate["edits"]
    ]
    assert any("</script><script>alert('x')</script>" in edit for edit in edits)


def test_the_title_is_escaped(page):
    assert "<h1>a &lt;b&gt; &amp; c</h1>" in page


def test_the_scripts_never_parse_text_as_markup(page):
    for word in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("):
        assert word not in page


def test_the_verdict_stands_in_the_page_without_any_script(page):
    assert "Co-evolution ends above frozen." in page
    assert "paired by task and seed over 50 tasks" in page


def test_no_machine_path_of_a_run_is_in_the_page(tmp_path):
    assert str(tmp_path) not in render_report([make_run(tmp_path, "frozen")])


def test_data_holds_every_round_and_where_the_configs_differ(page):
    data = _data(page)
    assert [arm["key"] for arm in data["arms"]] == ["frozen", "coevolve"]
    assert [len(arm["runs"][0]["rounds"]) for arm in data["arms"]] == [6, 6]
    assert {"key": "mode", "values": ['"frozen"', '"coevolve"']} in data["config_differences"]


def test_embedded_json_has_no_character_that_ends_a_script():
    text = embed({"a": "</script><!-- & \u2028\u2029"})
    assert not set(text) & set("<>&\u2028\u2029")
    assert json.loads(text) == {"a": "</script><!-- & \u2028\u2029"}


def test_a_report_that_cannot_be_made_leaves_the_old_one(tmp_path):
    out = tmp_path / "deep" / "report.html"
    a = make_run(tmp_path / "runs", "frozen", rounds=1)
    b = make_run(tmp_path / "runs", "harness", rounds=1, split_seed=8)
    write_report([a], out)
    before = out.read_text()
    with pytest.raises(NotComparableError):
        write_report([a, b], out)
    assert out.read_text() == before
    assert [p.name for p in out.parent.iterdir()] == ["report.html"]
