"""One call of one endpoint through the `openai` SDK: a reply, or a failure that says what to do next.

The SDK's own retries are off: each try must be counted and charged by `client.Chat`.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from harness.evolve.llm.config import EndpointConfig
from harness.evolve.llm.errors import LLMSetupError
from harness.shorten import head_and_tail

_QUOTA = re.compile(r"quota|insufficient|billing|credit balance", re.I)
_CONTEXT = re.compile(r"context_length_exceeded|maximum context length|context window", re.I)
_KEY_LIKE = re.compile(r"\b(?:sk|pk|rk)-[\w*.-]{4,}|(?<=Bearer )\S+", re.I)
MAX_ERROR = 500
BACKOFF_S = 1.0
MAX_WAIT_S = 60.0


@dataclass(frozen=True, slots=True)
class Reply:
    """One completion. tool_calls: (id, name, arguments as the model wrote them). counted: whether
    the token counts are the server's; else they are estimated."""

    content: str
    finish_reason: str
    prompt_tokens: int
    completion_tokens: int
    tool_calls: tuple[tuple[str, str, str], ...] = ()
    counted: bool = True


class CallFailed(Exception):
    """A call without a reply.

    kind: `retry` may pass by itself, `next` will not at this endpoint, `context` is the question's
    own length. after_s: the server's wish. billed: the server may have worked, so the prompt is
    charged.
    """

    def __init__(
        self,
        kind: Literal["retry", "next", "context"],
        message: str,
        after_s: float | None = None,
        billed: bool = False,
    ) -> None:
        super().__init__(message)
        self.kind, self.after_s, self.billed = kind, after_s, billed

    def pause_s(self, tries: int, jitter: random.Random) -> float:
        """Seconds before the next try, `tries` (from 0) after the first: exponential with full
        jitter, and no less than the server asked for."""
        longest = min(MAX_WAIT_S, BACKOFF_S * 2**tries)
        return max(self.after_s or 0.0, jitter.uniform(0, longest))


class Endpoint:
    """A configured endpoint and its client, made anew in each event loop."""

    def __init__(self, name: str, config: EndpointConfig, key: str | None) -> None:
        self.name, self.config = name, config
        self._key = key
        self._sdk = _sdk()
        self._client: Any = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def __repr__(self) -> str:
        return f"Endpoint({self.name!r}, {self.config.base_url!r}, {self.config.model!r})"

    async def call(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]],
        schema: Mapping[str, Any] | None,
        max_tokens: int,
        temperature: float,
        seed: int | None,
    ) -> Reply:
        """Raises CallFailed."""
        sdk = self._sdk
        try:
            answer = await self._open().chat.completions.create(
                **self._request(messages, tools, schema, max_tokens, temperature, seed)
            )
        except sdk.APITimeoutError as error:
            said = f"no answer within {self.config.timeout_s:g} s"
            raise CallFailed("retry", self._say(said), billed=True) from error
        except sdk.APIConnectionError as error:
            cause = error.__cause__ or error
            said = f"cannot be reached ({type(cause).__name__}: {cause})"
            raise CallFailed("retry", self._say(said)) from error
        except sdk.APIStatusError as error:
            raise self._failed(error) from error
        except (sdk.APIError, ValueError) as error:  # a body that is no completion
            raise CallFailed(
                "retry", self._say(f"{type(error).__name__}: {error}"), billed=True
            ) from error
        return self._reply(answer, messages)

    async def close(self) -> None:
        """End the client's connections."""
        if self._client is not None and self._loop is asyncio.get_running_loop():
            await self._client.close()
        self._client = None

    def _open(self) -> Any:
        loop = asyncio.get_running_loop()
        if self._client is None or self._loop is not loop:
            self._loop = loop
            self._client = self._sdk.AsyncOpenAI(
                base_url=self.config.base_url,
                api_key=self._key or "none",
                timeout=self.config.timeout_s,
                max_retries=0,
            )
        return self._client

    def _request(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]],
        schema: Mapping[str, Any] | None,
        max_tokens: int,
        temperature: float,
        seed: int | None,
    ) -> dict[str, Any]:
        request: dict[str, Any] = {
            "model": self.config.model,
            "messages": list(messages),
            "max_completion_tokens": max_tokens,
            "temperature": temperature,
        }
        if tools:
            request |= {"tools": list(tools), "tool_choice": self.config.tool_choice}
        if schema is not None and self.config.structured == "json_schema":
            form = {"name": "answer", "strict": True, "schema": schema}
            request["response_format"] = {"type": "json_schema", "json_schema": form}
        elif schema is not None and self.config.structured == "json_object":
            request["response_format"] = {"type": "json_object"}
        if seed is not None and self.config.seed:
            request["seed"] = seed % (1 << 31)
        if self.config.extra_body:
            request["extra_body"] = dict(self.config.extra_body)
        return request

    def _reply(self, answer: Any, messages: Sequence[Mapping[str, Any]]) -> Reply:
        choices = getattr(answer, "choices", None)
        if not choices:
            raise CallFailed("retry", self._say("the reply holds no choice"), billed=True)
        message = choices[0].message
        calls = tuple(
            (call.id or f"call-{n}", call.function.name, call.function.arguments or "{}")
            for n, call in enumerate(message.tool_calls or ())
            if call.type == "function"
        )
        content = message.content or ""
        usage = answer.usage
        counted = usage is not None
        return Reply(
            content,
            choices[0].finish_reason or "stop",
            usage.prompt_tokens if counted else estimate(messages),
            usage.completion_tokens if counted else len(content) // 3 + 1,
            calls,
            counted,
        )

    def _failed(self, error: Any) -> CallFailed:
        status = error.status_code
        said = self._say(f"HTTP {status}: {error.message}")
        if status == 429 and _QUOTA.search(str(error.message)):
            return CallFailed("next", f"{said}; a used-up quota does not come back by waiting")
        if status in (400, 413) and _CONTEXT.search(f"{error.code} {error.message}"):
            return CallFailed("context", said)
        if status in (408, 409, 425, 429) or status >= 500:
            return CallFailed("retry", said, _seconds(error.response.headers.get("retry-after")))
        if status in (401, 403):
            where = self.config.api_key_env or "api_key_env, which is not set"
            return CallFailed("next", f"{said}; check the key in {where}")
        return CallFailed("next", said)

    def _say(self, text: str) -> str:
        """One line that names the endpoint and holds no key."""
        if self._key:
            text = text.replace(self._key, "[key]")
        text = _KEY_LIKE.sub("[key]", " ".join(text.split()))
        return f"endpoint {self.name!r} ({self.config.base_url}): {head_and_tail(text, MAX_ERROR)}"


def estimate(messages: Sequence[Mapping[str, Any]]) -> int:
    """Prompt tokens, on the high side: three characters each, and four tokens a message."""
    return sum(len(json.dumps(message)) // 3 + 4 for message in messages)


def _seconds(header: str | None) -> float | None:
    """Of a Retry-After header in seconds; its date form is passed over."""
    return float(header) if header and re.fullmatch(r"\d+(\.\d+)?", header) else None


def _sdk() -> Any:
    try:
        return importlib.import_module("openai")
    except ImportError as error:
        raise LLMSetupError(
            f"the roles of evolution call models through the openai SDK, which is missing ({error}); "
            "run `pip install 'coevo[llm]'`, or choose a recipe without a language model"
        ) from error
