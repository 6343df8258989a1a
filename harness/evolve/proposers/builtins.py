"""The built-in parts as an author of edits reads about them."""

from __future__ import annotations

import importlib
import json
import pkgutil
from functools import lru_cache

from harness import processors
from harness.component import nearest
from harness.events import HOOKS
from harness.processor import Processor
from harness.tools.registry import ToolFailure, schema_of


@lru_cache(maxsize=1)
def built_in_parts() -> dict[str, type[Processor]]:
    """Entry point -> class, of every processor under `harness.processors`."""
    found = {}
    for info in pkgutil.iter_modules(processors.__path__, f"{processors.__name__}."):
        module = importlib.import_module(info.name)
        for name, value in sorted(vars(module).items()):
            own = isinstance(value, type) and value.__module__ == info.name
            if own and issubclass(value, Processor) and not name.startswith("_"):
                found[f"{info.name}:{name}"] = value
    return found


def list_parts() -> str:
    """A line a part: entry point, kind, what it is for."""
    lines = []
    for entrypoint, cls in built_in_parts().items():
        about = (importlib.import_module(cls.__module__).__doc__ or "").split("\n")[0]
        lines.append(f"{entrypoint} ({cls.kind}): {about}")
    return "\n".join(lines)


def describe_part(name: str) -> str:
    """A part's documentation, hooks and parameters. Raises ToolFailure with the nearest name."""
    for entrypoint, cls in built_in_parts().items():
        short = entrypoint.rpartition(".")[2]
        if name in (entrypoint, short, *short.split(":"), cls.singleton_group):
            hooks = [hook for hook in HOOKS if hasattr(cls, hook)]
            schema = json.dumps(schema_of(cls).get("properties", {}), indent=1)
            return (
                f"{entrypoint}\nkind: {cls.kind}\nsingleton group: {cls.singleton_group or 'none'}\n"
                f"hooks: {', '.join(hooks) or 'none'}\nneeds: {', '.join(cls.needs) or 'nothing'}\n"
                f"{cls.__doc__ or ''}\nparameters: {schema}"
            )
    known = [key.rpartition(".")[2].partition(":")[0] for key in built_in_parts()]
    raise ToolFailure(f"there is no built-in part {name!r}{nearest(name, known)}")
