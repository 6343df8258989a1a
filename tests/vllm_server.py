"""vLLM's own OpenAI-compatible server of a model directory, for tests that talk to a real one."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

START_S = 400.0


@contextmanager
def vllm_server(model: Path, name: str, *arguments: object) -> Iterator[str]:
    """Base URL of the API that serves `model` as `name`, once it answers; ended with the context.

    arguments: further ones of the command line. It writes to `model`/server.log.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [
        sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", model,
        "--host", "127.0.0.1", "--port", port, "--served-model-name", name,
        "--dtype", "float32", "--enforce-eager", "--block-size", 32,
        "--enable-auto-tool-choice", "--tool-call-parser", "hermes", *arguments,
    ]  # fmt: skip
    env = os.environ | {
        "OMP_NUM_THREADS": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
    }
    log = model / "server.log"
    with log.open("wb") as output:
        server = subprocess.Popen(
            list(map(str, command)), env=env, stdout=output, stderr=output, start_new_session=True
        )
    try:
        address = f"http://127.0.0.1:{port}"
        deadline = time.monotonic() + START_S
        while not _healthy(address):
            said = log.read_text(errors="replace")[-3000:]
            assert server.poll() is None, said
            assert time.monotonic() < deadline, said
            time.sleep(0.5)
        yield f"{address}/v1"
    finally:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()


def _healthy(address: str) -> bool:
    try:
        with urllib.request.urlopen(f"{address}/health", timeout=5) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, ConnectionError, TimeoutError):
        return False
