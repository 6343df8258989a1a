"""Hostile processors: each ends as a typed outcome, and the next episode is untouched."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import time
from pathlib import Path

import pytest
from sandbox_bench import Bench, Echo, at, own, saying

from harness.host import HostError, ModelReply, ModelRequest
from harness.metered import Budgets
from harness.sandbox import Limits, Sandbox
from harness.sandbox.containment import SandboxUnavailable
from harness.sandbox.spares import MAX_SPARES

QUICK = Limits(silent_s=3.0)


def test_a_harmless_bundle_runs_and_the_level_is_reported(bench: Bench) -> None:
    host = Echo()
    ran = bench.episode(at("step_start", "yield event"), host, trace_level="full", run_id="r1")
    assert (ran.result.status, ran.result.steps, ran.result.output) == ("completed", 2, "go")
    expected = {"bubblewrap": "bubblewrap+", "landlock": ""}[bench.sandbox.requested]
    assert ran.level == expected + "landlock+seccomp"
    assert ran.trace is not None
    assert (ran.trace["run_id"], ran.trace["status"]) == ("r1", "completed")
    assert [e["kind"] for e in ran.trace["agent"]] == ["model", "tool", "model", "tool"]
    assert [r[:4] for r in ran.trace["harness"]] == [
        [0, "step_start", "own", "pass"],
        [1, "step_start", "own", "pass"],
    ]


@pytest.mark.parametrize(
    ("bundle", "status", "reason"),
    [
        (at("after_tool", "yield 'text'"), "contract_violation", "yielded str"),
        (
            at("after_tool", "for _ in range(10**6): yield event"),
            "contract_violation",
            "more than 64 times",
        ),
        (
            at("step_end", "yield dataclasses.replace(event, done=True)"),
            "contract_violation",
            "step_end may change nothing",
        ),
        (at("before_model", "raise KeyError('x')\nyield"), "harness_error", "KeyError"),
        (at("before_model", "sys.exit(0)\nyield"), "harness_error", "SystemExit"),
        (at("before_model", "os._exit(0)\nyield"), "harness_error", "exited with status 0"),
        (at("before_model", "os.close(3)\ntime.sleep(1)\nyield event"), "harness_error", ""),
        (at("before_model", "x = bytearray(1 << 34)\nyield"), "harness_error", "MemoryError"),
        (
            at("before_model", "x = []\nwhile True: x.append(bytearray(1 << 24))\nyield"),
            "harness_error",
            "MemoryError",
        ),
        (
            at("before_model", "import ctypes\nctypes.string_at(0)\nyield"),
            "harness_error",
            "SIGSEGV",
        ),
        (
            at("before_model", "raise Interrupt('lucky', 'infra_error')\nyield"),
            "contract_violation",
            "Interrupt",
        ),
        (own("raise ValueError('at import')"), "harness_error", "at import"),
        (own("x = 1"), "harness_error", "no Processor class"),
        (own("class Own(:"), "harness_error", "SyntaxError"),
    ],
)
def test_broken_code_is_named(bench: Bench, bundle: object, status: str, reason: str) -> None:
    ran = bench.episode(bundle)  # type: ignore[arg-type]
    assert ran.result.status == status, ran.result
    assert reason in ran.result.reason
    bench.still_works()


@pytest.mark.parametrize(
    "bundle",
    [
        at("before_model", "while True: pass\nyield"),
        at("before_model", "time.sleep(1000)\nyield"),
        at("before_model", "import re\nre.match('(a+)+$', 'a' * 60 + 'b')\nyield"),
        at(
            "before_model",
            "import signal\nfor s in (2, 15): signal.signal(s, signal.SIG_IGN)\nwhile 1: 1\nyield",
        ),
        own("while True: pass"),
    ],
)
def test_a_processor_that_never_returns_is_killed(bench: Bench, bundle: object) -> None:
    ran = bench.episode(bundle, limits=QUICK)  # type: ignore[arg-type]
    assert ran.result.status == "harness_error"
    assert "sent nothing for 3.0 s" in ran.result.reason
    bench.still_works()


def test_cpu_time_is_limited(bench: Bench) -> None:
    ran = bench.episode(
        at("before_model", "while True: pass\nyield"), limits=Limits(cpu_s=1, silent_s=60.0)
    )
    assert ran.result.status == "harness_error"
    assert "CPU time" in ran.result.reason


def test_one_that_hangs_does_not_hold_up_the_others(bench: Bench) -> None:
    async def all_of_them() -> list[str]:
        hangs = bench.run(at("step_start", "time.sleep(1000)\nyield"), limits=QUICK)
        fine = [bench.run(at("step_start", "yield event"), seed=i) for i in range(40)]
        return [ran.result.status for ran in await asyncio.gather(hangs, *fine)]

    assert bench.runner.run(all_of_them()) == ["harness_error"] + ["completed"] * 40


@pytest.mark.parametrize(
    "expression",
    [
        "os.fork()",
        "os.forkpty()",
        "subprocess.run(['/bin/true'])",
        "os.posix_spawn('/bin/true', ['true'], {})",
        "os.execv('/bin/true', ['true'])",
        "os.kill(os.getppid(), 0)",
        "os.kill(os.getpid(), 0)",
        "os.killpg(os.getpgid(0), 0)",
        "socket.socket(socket.AF_INET, socket.SOCK_STREAM)",
        "socket.socket(socket.AF_INET, socket.SOCK_DGRAM)",
        "socket.socket(socket.AF_INET6, socket.SOCK_RAW)",
        "socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)",
        "socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)",
        "socket.socket(socket.AF_NETLINK, socket.SOCK_RAW)",
        "open('/proc/self/environ').read()",
        "open(f'/proc/{os.getppid()}/environ').read()",
        "open('/proc/1/cmdline').read()",
        "os.listdir('/proc')",
        "open('/etc/passwd').read()",
        "os.listdir('/root')",
        "os.listdir('/home')",
        "os.listdir('/')",
        "open(os.__file__, 'a')",
        "open(sys.modules['harness'].__file__, 'a')",
        "os.rename(sys.modules['harness'].__file__, '/tmp/x')",
        "open('/tmp/escaped', 'w')",
        "os.symlink('/etc/passwd', 'link')",
        "os.mkfifo('fifo')",
        "os.open('/dev/kmsg', os.O_RDONLY)",
        "os.chroot('/')",
        "os.setuid(0) or open('/etc/shadow').read()",
        "os.memfd_create('x')",
        "__import__('resource').setrlimit(8, (1 << 30, 1 << 30))",
        "__import__('resource').prlimit(os.getppid(), 7)",
    ],
)
def test_what_would_reach_out_is_refused(bench: Bench, expression: str) -> None:
    said = bench.heard(expression)
    kinds = ("PermissionError", "OSError", "FileNotFoundError", "ValueError", "BlockingIOError")
    assert said.startswith(kinds), said


@pytest.mark.parametrize(
    ("call", "arguments"),
    [
        ("ptrace", "16, os.getppid(), 0, 0"),
        ("unshare", "0x10000000"),
        ("mount", "0, b'/tmp', b'tmpfs', 0, 0"),
        ("prctl", "1, 0, 0, 0, 0"),
        ("prctl", "38, 0, 0, 0, 0"),
        ("shmget", "0, 4096, 0o600"),
    ],
)
def test_raw_system_calls_are_refused_too(bench: Bench, call: str, arguments: str) -> None:
    assert bench.heard(f"ctypes.CDLL(None).{call}({arguments})") == "-1"


def test_the_environment_and_the_descriptors_hold_nothing_of_the_worker(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("API_KEY", "secret")
    assert "secret" not in bench.heard("dict(os.environ)")
    names = bench.heard("sorted(os.environ)")
    assert set(eval(names)) <= {
        "LC_ALL",
        "LC_CTYPE",
        "LD_LIBRARY_PATH",
        "PATH",
        "PYTHONHASHSEED",
        "PWD",
        "TMPDIR",
        "TZ",
    }
    probe = "[n for n in range(64) if not ctypes.CDLL(None).fcntl(n, 1) == -1]"
    # /dev/null three times, the socket, and the event loop's own three.
    assert len(eval(bench.heard(probe))) <= 7


def test_a_forked_child_cannot_outlive_its_episode_because_there_is_none(bench: Bench) -> None:
    before = _processes()
    assert bench.heard("[ctypes.CDLL(None).fork() for _ in range(50)]") == repr([-1] * 50)
    # Besides the spare processes that the sandbox itself makes ready, and the one that ends.
    assert _processes() <= before + MAX_SPARES + 1


def _processes() -> int:
    """Processes whose parents lead to this one."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except (FileNotFoundError, ProcessLookupError):
                continue
            parents[int(entry.name)] = int(fields[1])
    count = 0
    for pid in parents:
        while pid in parents and pid != os.getpid():
            pid = parents[pid]
        count += pid == os.getpid()
    return count


def test_threads_are_allowed(bench: Bench) -> None:
    bundle = "(t := threading.Thread(target=lambda: None)).start() or t.join() or 'joined'"
    assert bench.heard(bundle) == "'joined'"


def test_a_gigabyte_of_print_goes_nowhere(bench: Bench) -> None:
    body = "for _ in range(1000): print('x' * (1 << 20))\nprint('e' * 99, file=sys.stderr)\n"
    ran = bench.episode(at("task_start", body + "yield event"))
    assert ran.result.status == "completed"
    bench.still_works()


def test_scratch_is_small_and_empty_again_for_the_next(bench: Bench) -> None:
    if bench.sandbox.requested != "bubblewrap":
        assert bench.heard("open('note', 'w')").startswith("PermissionError")
        return
    fill = "[open(f'f{i}', 'wb').write(b'x' * (4 << 20)) for i in range(99)]"
    for _ in range(3):
        assert bench.heard("os.listdir('.')") == "[]"
        assert "No space left" in bench.heard(fill)
        assert "File too large" in bench.heard("open('big', 'wb').write(b'x' * (9 << 20))")
    assert bench.heard("(os.mkdir('d'), open('d/f', 'w').write('kept'), open('d/f').read())") == (
        "(None, 4, 'kept')"
    )


def test_another_episodes_scratch_is_out_of_reach(bench: Bench) -> None:
    said = bench.heard(
        "[os.listdir(f'/scratch/{i}') for i in range(32) if f'/scratch/{i}' != os.getcwd()]"
    )
    assert said.startswith(("PermissionError", "FileNotFoundError"))


def test_patches_to_the_harness_package_end_with_the_process(bench: Bench) -> None:
    patch = """
    import harness.runloop, harness.contract, builtins
    harness.runloop.run = None
    harness.contract.check = None
    builtins.len = None
    yield event
    """
    bench.episode(at("step_start", patch))
    bench.still_works()


def raw(data: bytes) -> object:
    return at("before_model", f"os.write(3, {data!r})\ntime.sleep(1000)\nyield")


def message(**fields: object) -> bytes:
    return json.dumps(fields).encode() + b"\n"


MODEL = {
    "step": 0,
    "kept": 0,
    "messages": [],
    "tools": None,
    "role": "main",
    "max_tokens": None,
}
DONE = {"status": "completed", "reason": "", "steps": 1, "output": ""}


@pytest.mark.parametrize(
    "data",
    [
        b"not json\n",
        b"\xff\xfe\x00\n",
        b'{"type": "model", "id": 1, "request": {"step": NaN}}\n',
        b'{"type": "model", "id": 1, "request": {"step": Infinity}}\n',
        b"[" * 100_000 + b"\n",
        b"[1]\n",
        b'"text"\n',
        b"\n",
        b"1" * 5000 + b"\n",
        message(type="pickle", id=1),
        message(type="model", id="1", request=MODEL),
        message(type="model", id=1),
        message(type="model", id=1, request={**MODEL, "step": -1}),
        message(type="model", id=1, request={**MODEL, "step": True}),
        message(type="model", id=1, request={**MODEL, "max_tokens": 1 << 40}),
        message(type="model", id=1, request={**MODEL, "kept": 1}),
        message(type="model", id=1, request={**MODEL, "messages": [{"role": "root"}]}),
        message(type="tool", id=1, request={"step": 0, "call_id": "", "name": "act", "input": []}),
        message(
            type="tool", id=1, request={"step": 0, "call_id": "", "name": "\ud800", "input": {}}
        ),
        message(type="done"),
        message(type="done", result={**DONE, "status": "won"}),
        message(type="done", result={**DONE, "steps": 1 << 60}),
        message(type="done", result=DONE, harness={"records": [1], "dropped": 0, "stopped": False}),
    ],
)
def test_what_is_no_message_is_a_harness_error(bench: Bench, data: bytes) -> None:
    host = Echo()
    ran = bench.episode(raw(data), host)  # type: ignore[arg-type]
    assert ran.result.status == "harness_error", ran.result
    assert "broke the protocol" in ran.result.reason
    assert host.asked == []
    bench.still_works()


def test_an_endless_line_is_cut_off(bench: Bench) -> None:
    body = "os.set_blocking(3, True)\nwhile True: os.write(3, b'x' * 65536)\nyield"
    ran = bench.episode(at("before_model", body))
    assert ran.result.status == "harness_error"
    assert "a line has more than" in ran.result.reason
    bench.still_works()


def test_a_flood_of_calls_is_cut_off(bench: Bench) -> None:
    call = message(type="tool", id=1, request={"step": 0, "call_id": "", "name": "a", "input": {}})
    ran = bench.episode(at("before_model", f"while 1: os.write(3, {call!r})\nyield"))
    assert ran.result.status == "harness_error"
    assert "calls" in ran.result.reason
    bench.still_works()


def test_an_infrastructure_error_cannot_be_claimed(bench: Bench) -> None:
    done = message(
        type="done", result={**DONE, "status": "infra_error", "reason": "oops"}, harness=None
    )
    ran = bench.episode(raw(done))  # type: ignore[arg-type]
    assert ran.result.status == "harness_error"
    assert "claimed" in ran.result.reason


def test_a_real_infrastructure_error_cannot_be_hidden(bench: Bench) -> None:
    class Broken(Echo):
        async def model(self, request: ModelRequest) -> ModelReply:
            raise HostError("infra", "the engine died")

    body = """
        async def before_model(self, event, ctx):
            from harness.host import ModelRequest
            try:
                await ctx.host.model(ModelRequest(0, event.messages))
            except Exception:
                pass
            raise Interrupt("all is well")
            yield
    """
    bundle = own(
        "from harness.processor import Processor, Interrupt\nclass Own(Processor):"
        + body.replace("\n    ", "\n")
    )
    ran = bench.episode(bundle, Broken())
    assert (ran.result.status, ran.result.reason) == ("infra_error", "the engine died")


def test_budgets_hold_against_a_child_that_ignores_them(bench: Bench) -> None:
    body = """
        import harness.metered
        harness.metered.MeteredHost.exhausted = lambda self: None
        yield event
    """
    host = Echo()
    host.tool = Never().tool  # type: ignore[method-assign]
    ran = bench.episode(at("task_start", body), host, budgets=Budgets(max_steps=99, max_tokens=20))
    assert ran.result.status == "truncated"
    assert len(host.asked) == 5


class Never(Echo):
    async def tool(self, request):  # type: ignore[no-untyped-def]
        self.called.clear()
        return await super().tool(request)


def test_a_slow_model_is_the_deadline_and_not_the_harness(bench: Bench) -> None:
    class Slow(Echo):
        async def model(self, request: ModelRequest) -> ModelReply:
            await asyncio.sleep(1000)
            raise AssertionError

    ran = bench.episode(
        at("step_start", "yield event"), Slow(), budgets=Budgets(wall_s=1.0), limits=QUICK
    )
    assert ran.result.status == "truncated"
    assert "deadline" in ran.result.reason


def test_an_error_of_the_worker_itself_is_raised_to_it(bench: Bench) -> None:
    class Bug(Echo):
        async def model(self, request: ModelRequest) -> ModelReply:
            raise ZeroDivisionError("in the worker")

    with pytest.raises(ZeroDivisionError, match="in the worker"):
        bench.episode(at("step_start", "yield event"), Bug())
    bench.still_works()


def test_runs_with_one_seed_are_alike(bench: Bench) -> None:
    draw = saying(
        "(ctx.rng.random(), __import__('random').random(), list({'a', 'b', 'c', 'd'}), hash('x'))"
    )
    first, second = Echo(), Echo()
    bench.episode(draw, first, seed=7)
    bench.episode(draw, second, seed=7)
    assert first.asked[0] == second.asked[0]


def test_a_dead_zygote_costs_its_running_episodes_and_no_more(runner: asyncio.Runner) -> None:
    sandbox = Sandbox("auto")
    bench = Bench(sandbox, runner)

    async def kill_it() -> str:
        await sandbox.start()
        hangs = asyncio.create_task(bench.run(at("step_start", "time.sleep(1000)\nyield")))
        await asyncio.sleep(0.5)
        assert sandbox._zygote is not None
        os.kill(sandbox._zygote.pid, signal.SIGKILL)
        return (await hangs).result.status

    started = time.monotonic()
    assert runner.run(kill_it()) == "infra_error"
    assert time.monotonic() - started < 60
    bench.still_works()
    runner.run(sandbox.close())


def test_unsafe_local_runs_only_when_it_is_asked_for_and_says_so(runner: asyncio.Runner) -> None:
    bench = Bench(Sandbox("unsafe_local"), runner)
    assert bench.episode(at("step_start", "yield event")).level == "unsafe_local"
    ran = bench.episode(at("step_start", "time.sleep(1000)\nyield"), limits=QUICK)
    assert ran.result.status == "harness_error"
    runner.run(bench.sandbox.close())


def bwrap_on_path(folder: Path, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put a `bwrap` before the real one, as on a machine that forbids some namespaces."""
    real = shutil.which("bwrap")
    if real is None:
        pytest.skip("bubblewrap is not installed")
    (folder / "bwrap").write_text(f"#!/bin/sh\n{script.replace('REAL', real)}\n")
    (folder / "bwrap").chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=os.pathsep)


def test_without_network_namespaces_bubblewrap_is_used_without_them(
    runner: asyncio.Runner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = 'case "$*" in *--unshare-all*) echo forbidden >&2; exit 1;; esac; exec REAL "$@"'
    bwrap_on_path(tmp_path, script, monkeypatch)
    bench = Bench(Sandbox("bubblewrap"), runner)
    assert bench.episode(at("step_start", "yield event")).level == "bubblewrap+landlock+seccomp"
    assert ["forbidden" in why for why in bench.sandbox.refused] == [True]
    runner.run(bench.sandbox.close())


def test_where_bubblewrap_may_not_work_landlock_is_next_and_the_reason_is_kept(
    runner: asyncio.Runner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bwrap_on_path(tmp_path, "echo no permission >&2; exit 1", monkeypatch)
    bench = Bench(Sandbox("auto"), runner)
    assert bench.episode(at("step_start", "yield event")).level == "landlock+seccomp"
    assert all("no permission" in why for why in bench.sandbox.refused)
    runner.run(bench.sandbox.close())
    with pytest.raises(SandboxUnavailable, match="no permission"):
        runner.run(Sandbox("bubblewrap").start())


def test_hundreds_of_episodes_run_at_once(runner: asyncio.Runner) -> None:
    bench = Bench(Sandbox("auto", slots=128), runner)

    async def all_of_them() -> set[str]:
        runs = [bench.run(at("step_start", "yield event"), seed=i) for i in range(200)]
        return {ran.result.status for ran in await asyncio.gather(*runs)}

    assert runner.run(all_of_them()) == {"completed"}
    runner.run(bench.sandbox.close())
