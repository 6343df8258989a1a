"""All GPU measurements in 15 minutes, each within its own limit, and a summary of how they ended.

    python benchmarks/gpu/run_all.py [--dry-run] [--only NAME …]

A measurement that fails or runs out of time ends alone; the exit status is 1 then.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Measurement:
    """`command`: a script beside this one or above, and its arguments. limit_s: then it is killed."""

    command: tuple[str, ...]
    limit_s: int


MEASUREMENTS = {
    "engine": Measurement(("engine_throughput.py",), 180),
    "sleep": Measurement(("sleep_wake.py",), 120),
    "publication": Measurement(("publication.py",), 150),
    "trainer": Measurement(
        (
            "../trainer_vs_trl.py", "--device", "cuda", "--hidden", "1024", "--layers", "16",
            "--vocabulary", "151936", "--trajectories", "64", "--rows", "8", "--longest", "2048",
            "--steps", "4", "--repeats", "1",
        ),
        240,
    ),
    "rollout": Measurement(
        (
            "../rollout_throughput.py", "--device", "cuda", "--hidden", "1024", "--layers", "28",
            "--episodes", "256", "--workers", "4", "--scheduling", "continuous", "--batching",
            "continuous", "--kv-mib", "8192", "--repeats", "2",
        ),
        210,
    ),
}  # fmt: skip


def run(measurement: Measurement, dry_run: bool) -> str:
    """How it ended. Its output goes where ours goes."""
    script, *arguments = measurement.command
    command = [sys.executable, str((HERE / script).resolve()), *arguments]
    if dry_run:
        command.append("--dry-run")
    # Ray and vLLM leave processes behind where a script is killed: the whole session is ended.
    environment = {**os.environ, "PYTHONPATH": str(HERE.parent.parent)}
    process = subprocess.Popen(command, start_new_session=True, env=environment)
    try:
        code = process.wait(measurement.limit_s)
    except subprocess.TimeoutExpired:
        return f"killed after {measurement.limit_s} s"
    finally:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        process.wait()
    return "done" if code == 0 else f"ended with code {code}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", choices=sorted(MEASUREMENTS), metavar="NAME")
    parser.add_argument("--dry-run", action="store_true", help="check the settings, without a GPU")
    options = parser.parse_args()
    ends = {}
    for name in options.only or MEASUREMENTS:
        print(f"== {name}", flush=True)
        began = time.monotonic()
        how = run(MEASUREMENTS[name], options.dry_run)
        ends[name] = f"{how}, {time.monotonic() - began:.0f} s"
    print("== summary")
    for name, how in ends.items():
        print(f"{name}: {how}")
    sys.exit(any(not how.startswith("done") for how in ends.values()))


if __name__ == "__main__":
    main()
