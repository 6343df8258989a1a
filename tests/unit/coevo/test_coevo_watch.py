"""`coevo watch`: what the server answers, and to whom; what the command refuses."""

from __future__ import annotations

import http.client
import json
import shutil
import socket
import subprocess
import sys
import threading
from urllib.parse import quote

import pytest
from evolved_runs import evolve_run
from synthetic_runs import make_run

from coevo import cli
from coevo.report.serve import HOST, PageServer, Source


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    return evolve_run(make_run(tmp_path_factory.mktemp("runs"), "coevolve", rounds=3), 1)


@pytest.fixture
def path(template, tmp_path):
    """A copy that a test may change."""
    return shutil.copytree(template, tmp_path / template.name)


@pytest.fixture
def ask(path):
    """Asks a server of the run for a URL: (status, headers, text)."""
    with PageServer(Source([path]), 0) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()

        def get(url, **headers):
            client = http.client.HTTPConnection(HOST, server.server_port, timeout=60)
            client.request("GET", url, headers=headers)
            answer = client.getresponse()
            text = answer.read().decode()
            client.close()
            return answer.status, answer.headers, text

        yield get
        server.shutdown()


def test_watching_and_reporting_pull_no_engine():
    code = "import sys, coevo.watch_commands; print(*{'torch', 'ray', 'vllm', 'transformers'} & {*sys.modules})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


def test_the_served_page_may_ask_its_own_server_and_no_other(ask):
    status, _, text = ask("/")
    assert status == 200
    assert "connect-src 'self'" in text
    assert "default-src 'none'" in text


def test_nothing_is_sent_again_while_the_run_stands_still(ask):
    status, headers, text = ask("/data.json")
    assert (status, json.loads(text)["live"]) == (200, {"every": 5.0})
    assert ask("/data.json", **{"If-None-Match": headers["ETag"]})[0::2] == (304, "")


def test_news_of_the_run_change_the_tag_and_the_data(ask, path):
    _, headers, text = ask("/data.json")
    assert json.loads(text)["arms"][0]["finished"]
    (path / "summary.json").unlink()
    status, _, text = ask("/data.json", **{"If-None-Match": headers["ETag"]})
    assert status == 200
    assert not json.loads(text)["arms"][0]["finished"]


def test_only_a_browser_that_named_this_machine_is_answered(ask):
    assert ask("/", Host="localhost:1")[0] == 200
    status, _, text = ask("/data.json", Host="evil.example:8080")
    assert status == 403
    assert "evil.example" in text


def test_every_trace_of_a_cell_is_read_from_the_run(ask):
    data = json.loads(ask("/data.json")[2])
    assert data["traces"]["chunks"] == []
    grid = next(g for g in data["arms"][0]["runs"][0]["grids"] if g["split"] == "evolve")
    task = data["tasks"][grid["tasks"][0]]["key"]
    status, _, text = ask(f"/trace?run=0&round=0&task={quote(task)}")
    assert status == 200
    assert [item["task"] for item in json.loads(text)] == [task, task]
    assert json.loads(text)[0]["trace"]["steps"][0]["agent"][0]["said"]


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("/trace?run=7&round=0&task=t", "there is no run 7"),
        ("/trace?run=0&round=9&task=task-00", "no rollout of task task-00 in round 9"),
        ("/trace?run=x", "expected ?run=INDEX&task=KEY&round=N"),
        ("/../config.yaml", "is not served"),
        ("/journal.jsonl", "is not served"),
    ],
)
def test_what_is_not_there_is_a_404_that_says_so(ask, url, said):
    status, _, text = ask(url)
    assert status == 404
    assert said in text


def test_a_run_that_went_away_is_told_and_the_server_lives_on(ask, path):
    moved = path.rename(path.with_name("moved"))
    assert ask("/data.json")[0] == 503
    moved.rename(path)
    assert ask("/data.json")[0] == 200


def test_a_port_in_use_is_refused_with_what_to_do(path, capsys):
    with socket.socket() as taken:
        taken.bind((HOST, 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert cli.main(["watch", str(path), "--port", str(port)]) == cli.EXIT_BAD_INPUT
    error = capsys.readouterr().err
    assert f"port {port} on 127.0.0.1 cannot be used" in error
    assert "--port 0" in error


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nowhere"], "there is no such run directory"),
        (["--port", "70000"], "--port is 70000"),
        (["--every", "0"], "--every is 0"),
    ],
)
def test_bad_arguments_are_one_line(path, arguments, said, capsys):
    runs = [] if arguments[0] == "nowhere" else [str(path)]
    assert cli.main(["watch", *runs, *arguments]) == cli.EXIT_BAD_INPUT
    assert said in capsys.readouterr().err
