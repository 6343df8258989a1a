"""Token capture mark (D9): which model roles of a bundle may train the policy.

The worker captures tokens and log-probs itself, whatever a harness does; this component only
narrows what of them may become training data. The worker reads it from the manifest. It sorts and
does not protect: code that makes a model call names the call's role itself.
"""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from harness.bundle import Bundle
from harness.jsonvalue import thaw
from harness.processor import Processor

ENTRYPOINT = "harness.processors.token_capture:TokenCapture"


class TokenCapture(Processor):
    """roles: model calls of these roles (`ModelRequest.role`) may train; the rest only serve.

    `main` is the agent's own turn; others are those of the parts: planner, judge, summariser,
    subagent.
    """

    kind: ClassVar[str] = "config"
    singleton_group: ClassVar[str | None] = "token_capture"
    dimension: ClassVar[str] = "D9"

    roles: tuple[str, ...] = Field(("main",), min_length=1)


def trainable_roles(bundle: Bundle) -> frozenset[str] | None:
    """The roles whose samples may train; None where the bundle says nothing: all may.

    Runs no code of the bundle. Raises pydantic's ValidationError for parameters that `build`
    refuses, too.
    """
    for component in bundle.components:
        if component.entrypoint == ENTRYPOINT:
            return frozenset(TokenCapture.model_validate(thaw(component.params)).roles)
    return None
