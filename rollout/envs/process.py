"""A session in a process of its own, for environments that are not safe beside each other.

Parent and child speak JSON lines over the child's standard streams; what the environment prints goes
to standard error. `python -m rollout.envs.process` is the child.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict
from typing import IO, Any, NoReturn

from rollout.envs.base import EnvError, Observation, Score
from rollout.envs.text import TextTask


class ProcessSession:
    """A TextSession whose environment runs in a child. timeout_s: of one call; a child that dies or
    takes longer is ended, and the episode is an infrastructure error (EnvError)."""

    def __init__(
        self, spec: str, options: Mapping[str, Any], task: TextTask, seed: int, timeout_s: float
    ) -> None:
        self._what = f"environment {spec}, task {task.id}"
        self._timeout_s = timeout_s
        self._left = b""
        self._child = subprocess.Popen(
            [sys.executable, "-m", "rollout.envs.process"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
        )
        self._call({"spec": spec, "options": dict(options), "task": asdict(task), "seed": seed})

    def reset(self) -> Observation:
        return _observation(self._call({"do": "reset"}))

    def step(self, action: str) -> Observation:
        return _observation(self._call({"do": "step", "action": action}))

    def score(self) -> Score:
        found = self._call({"do": "score"})
        return Score(found["reward"], found["success"], found["detail"])

    def close(self) -> None:
        """End the child."""
        self._child.kill()
        self._child.wait()
        for stream in (self._child.stdin, self._child.stdout):
            if stream is not None:
                stream.close()

    def _call(self, request: Mapping[str, Any]) -> dict[str, Any]:
        assert self._child.stdin is not None
        try:
            self._child.stdin.write(json.dumps(request).encode() + b"\n")
            reply: dict[str, Any] = json.loads(self._line())
        except BrokenPipeError:
            self._fail(f"its process ended with code {self._child.wait()}")
        except ValueError as error:
            self._fail(f"its process said what is no JSON ({error})")
        if "error" in reply:
            self._fail(reply["error"])
        return reply

    def _line(self) -> bytes:
        assert self._child.stdout is not None
        end = time.monotonic() + self._timeout_s
        while b"\n" not in self._left:
            ready, _, _ = select.select(
                [self._child.stdout], [], [], max(0.0, end - time.monotonic())
            )
            if not ready:
                self._fail(f"a call took longer than {self._timeout_s:g} s (step_timeout_s)")
            more = os.read(self._child.stdout.fileno(), 1 << 16)
            if not more:
                self._fail(f"its process ended with code {self._child.wait()}")
            self._left += more
        line, _, self._left = self._left.partition(b"\n")
        return line

    def _fail(self, why: str) -> NoReturn:
        self.close()
        raise EnvError(f"{self._what}: {why}")


def _observation(found: Mapping[str, Any]) -> Observation:
    return Observation(found["text"], tuple(found["choices"]), found["done"], found["is_error"])


def _serve(requests: IO[str], replies: IO[str]) -> None:
    """The child: opens the session that the first line names, then does what each line asks."""
    from rollout.envs.factory import inner_env

    def answer(value: Mapping[str, Any]) -> None:
        replies.write(json.dumps(value) + "\n")
        replies.flush()

    session = None
    for line in requests:
        request = json.loads(line)
        try:
            if session is None:
                env = inner_env(request["spec"], **request["options"])
                session = env.open(TextTask(**request["task"]), request["seed"])
                answer({})
            elif request["do"] == "reset":
                answer(asdict(session.reset()))
            elif request["do"] == "step":
                answer(asdict(session.step(request["action"])))
            else:
                answer(asdict(session.score()))
        except EnvError as error:
            answer({"error": str(error)})


def _main() -> None:
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    _serve(sys.stdin, replies)


if __name__ == "__main__":
    _main()
