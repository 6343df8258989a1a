"""The report page served while its runs go on: read again when their files change.

GET /            the page
GET /data.json   the object that it draws, with an ETag
GET /trace       both traces of a cell's runs: ?run=INDEX&task=KEY&round=N

Loopback only, and only for a Host that names it: no other site may read a run through a browser.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from coevo.comparable import NotComparableError
from coevo.compare import compare
from coevo.events import FILE as EVENTS_FILE
from coevo.report.data import RunData, payload, read_run_data
from coevo.report.page import encode_data, page
from coevo.report.traces import of_cell
from coevo.runs import RunError, load_run

HOST = "127.0.0.1"
LOCAL = frozenset({"localhost", "127.0.0.1"})
UNREAD = frozenset({"matrix", "objects", "policy", "rounds", "tensorboard", "tmp", "trainer"})
"""Directories of a run that the page reads nothing from that changes."""


class NotThereError(LookupError):
    """What was asked for is not in the runs."""


@dataclass(frozen=True)
class _Read:
    signature: int
    found: RunData


class Source:
    """Runs read again when their files change. Safe to call from several threads.

    paths: run directories. every: seconds between two questions of the page.
    """

    def __init__(self, paths: Sequence[Path], every: float = 5.0) -> None:
        self.paths = tuple(paths)
        self.every = every
        self._lock = threading.Lock()
        self._read: dict[Path, _Read] = {}
        self._in_order: tuple[RunData, ...] = ()
        self._data: dict[str, Any] = {}
        self._etag = ""

    def data(self) -> tuple[dict[str, Any], str]:
        """(what the page draws, its ETag). Raises RunError and NotComparableError."""
        with self._lock:
            now = {path: _signature(path) for path in self.paths}
            if self._data and all(self._read[p].signature == s for p, s in now.items()):
                return self._data, self._etag
            for path, signature in now.items():
                if path not in self._read or self._read[path].signature != signature:
                    self._read[path] = _Read(signature, read_run_data(load_run(path)))
            found = {id(self._read[p].found.run): self._read[p].found for p in self.paths}
            comparison = compare([item.run for item in found.values()])
            self._in_order = tuple(found[id(run)] for arm in comparison.arms for run in arm.runs)
            title = " · ".join(dict.fromkeys(item.run.name for item in found.values()))
            data = payload(comparison, title, self._in_order, every=self.every)
            self._data = data
            self._etag = f'"{hashlib.sha256(encode_data(data).encode()).hexdigest()[:32]}"'
            return self._data, self._etag

    def page(self) -> str:
        return page(self.data()[0])

    def traces(self, run: int, task: str, number: int) -> list[dict[str, Any]]:
        """Every trace of a task's runs in a round. Raises NotThereError."""
        self.data()
        if not 0 <= run < len(self._in_order):
            raise NotThereError(f"there is no run {run}; there are {len(self._in_order)}")
        found = self._in_order[run]
        episodes = [e for e in found.episodes.get(number, ()) if e.task == task]
        if not episodes:
            raise NotThereError(f"{found.run.name} has no rollout of task {task} in round {number}")
        traces, problems = of_cell(found.run.path, episodes)
        if problems and not traces:
            raise NotThereError("; ".join(problems))
        return traces


def _signature(path: Path) -> int:
    """Changes when a file that the page reads does."""
    seen = []
    for directory, inner, names in os.walk(path):
        inner[:] = [name for name in inner if name not in UNREAD]
        for name in names:
            try:
                stat = os.stat(os.path.join(directory, name))
            except FileNotFoundError:  # replaced meanwhile; the next question sees the new one
                continue
            # A run that goes on touches its events all the time, as a sign of life.
            changed = 0 if name == EVENTS_FILE else stat.st_mtime_ns
            seen.append((directory, name, changed, stat.st_size))
    return hash(tuple(sorted(seen)))


class PageServer(ThreadingHTTPServer):
    """Serves a source on the loopback interface. Raises OSError where the port cannot be had."""

    daemon_threads = True

    def __init__(self, source: Source, port: int) -> None:
        self.source = source
        super().__init__((HOST, port), _Handler)


class _Handler(BaseHTTPRequestHandler):
    server: PageServer

    def do_GET(self) -> None:
        host = self.headers.get("Host", "").partition(":")[0]
        if host not in LOCAL:
            self._text(403, f"Host {host!r} is not this machine; open http://localhost:PORT/")
            return
        url = urlsplit(self.path)
        try:
            if url.path == "/":
                self._send(200, self.server.source.page(), "text/html")
            elif url.path == "/data.json":
                self._data()
            elif url.path == "/trace":
                self._send(200, json.dumps(self._traces(parse_qs(url.query))), "application/json")
            else:
                self._text(404, f"{url.path} is not served; / is")
        except NotThereError as error:
            self._text(404, str(error))
        except (RunError, NotComparableError) as error:
            self._text(503, str(error))
        except BrokenPipeError:  # the browser has left
            self.close_connection = True

    def _data(self) -> None:
        data, etag = self.server.source.data()
        if self.headers.get("If-None-Match") == etag:
            self.send_response(304)
            self.send_header("ETag", etag)
            self.end_headers()
        else:
            self._send(200, encode_data(data), "application/json", {"ETag": etag})

    def _traces(self, query: Mapping[str, list[str]]) -> list[dict[str, Any]]:
        try:
            run, number = int(query["run"][0]), int(query["round"][0])
            task = query["task"][0]
        except (KeyError, ValueError) as error:
            raise NotThereError(f"expected ?run=INDEX&task=KEY&round=N ({error!r})") from error
        return self.server.source.traces(run, task, number)

    def _text(self, code: int, text: str) -> None:
        self._send(code, text, "text/plain")

    def _send(
        self, code: int, text: str, kind: str, headers: Mapping[str, str] | None = None
    ) -> None:
        body = text.encode()
        self.send_response(code)
        if "gzip" in self.headers.get("Accept-Encoding", ""):
            body = gzip.compress(body, 5)
            self.send_header("Content-Encoding", "gzip")
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: the terminal keeps the address in sight."""
