"""A scripted OpenAI-compatible server on localhost: the real SDK talks to it, the test says what it answers."""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from harness.evolve.llm.client import Chat
from harness.evolve.llm.config import LLMConfig

KEY = "sk-test-0123456789"


def says(content: str, finish: str = "stop", tokens: tuple[int, int] = (100, 20)) -> dict:
    """A completion with that text."""
    return completion({"role": "assistant", "content": content}, finish, tokens)


def calls(tool: str, /, **arguments: Any) -> dict:
    """A completion that calls one tool."""
    function = {"name": tool, "arguments": json.dumps(arguments)}
    call = {"id": "c1", "type": "function", "function": function}
    message = {"role": "assistant", "content": "", "tool_calls": [call]}
    return completion(message, "tool_calls", (100, 20))


def completion(message: dict, finish: str, tokens: tuple[int, int]) -> dict:
    choice = {"index": 0, "message": message, "finish_reason": finish}
    usage = {
        "prompt_tokens": tokens[0],
        "completion_tokens": tokens[1],
        "total_tokens": sum(tokens),
    }
    return {
        "id": "x", "object": "chat.completion", "created": 0, "model": "m",
        "choices": [choice], "usage": usage,
    }  # fmt: skip


def fails(status: int, message: str, **headers: str) -> tuple[int, dict, dict]:
    """An error reply."""
    return status, {"error": {"message": message, "type": "error", "code": None}}, headers


HANG = "hang"
"""Never answers, until the server closes."""


class Server:
    """respond: request JSON -> a completion, `fails(...)`, bytes sent as they are, or HANG."""

    def __init__(self, respond: Callable[[dict], Any]) -> None:
        self.requests: list[dict] = []
        self.keys: list[str | None] = []
        self.closing = threading.Event()
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                server.requests.append(body)
                server.keys.append(self.headers.get("authorization"))
                answer = respond(body)
                status, headers = 200, {}
                if answer == HANG:
                    server.closing.wait(30)
                    return
                if isinstance(answer, tuple):
                    status, answer, headers = answer
                data = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
                self.send_response(status)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(data)))
                for name, value in headers.items():
                    self.send_header(name.replace("_", "-"), value)
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_: object) -> None:
                pass

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._http.daemon_threads = True
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._http.server_port}/v1"

    def close(self) -> None:
        self.closing.set()
        self._http.shutdown()
        self._http.server_close()


def scripted(*answers: Any) -> Callable[[dict], Any]:
    """One answer after the other; the last one for ever."""
    left = list(answers)
    lock = threading.Lock()

    def respond(_: dict) -> Any:
        with lock:
            return left.pop(0) if len(left) > 1 else left[0]

    return respond


def config(*urls: str, endpoint: dict | None = None, **more: Any) -> LLMConfig:
    """Endpoints e0, e1, … in that order for every role."""
    shared = {"model": "m", "max_retries": 1, "timeout_s": 5, **(endpoint or {})}
    endpoints = {f"e{n}": {"base_url": url, **shared} for n, url in enumerate(urls)}
    return LLMConfig.model_validate(
        {"endpoints": endpoints, "roles": {"default": list(endpoints)}, "max_tokens": 500, **more}
    )


class Clock:
    """Sleeps at once and remembers for how long."""

    def __init__(self) -> None:
        self.slept: list[float] = []

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)


def chat_with(settings: LLMConfig, path: Any = None, env: dict | None = None) -> tuple[Chat, Clock]:
    clock = Clock()
    rng = random.Random(3)
    return Chat.from_config(settings, path, rng, env=env or {}, sleep=clock.sleep), clock
