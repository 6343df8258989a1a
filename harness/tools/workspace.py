"""The directory that the tools of one task work in; file tools reach nothing outside it.

A command of the same task may change the directory at any time, so paths are opened step by step
without ever following a symbolic link.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from harness.tools.registry import ToolFailure

MAX_FILE_BYTES = 4 << 20


class Workspace:
    """The directory `root`, which exists. Raises FileNotFoundError, NotADirectoryError."""

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self.root = Path(root).resolve(strict=True)
        if not self.root.is_dir():
            raise NotADirectoryError(f"workspace {self.root} is not a directory")

    def read(self, path: str) -> str:
        """The text of a file of at most MAX_FILE_BYTES. Raises ToolFailure."""
        with self._folder(path) as (folder, name):
            return self.read_at(folder, name, path)

    def read_at(self, folder: int, name: str, path: str) -> str:
        """As `read`, of `name` in the open directory `folder`; `path` is for messages."""
        try:
            # Not blocking: a fifo would hang the open.
            handle = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
        except OSError as error:
            raise ToolFailure(_said(path, error)) from error
        state = os.fstat(handle)
        if not stat.S_ISREG(state.st_mode):
            os.close(handle)
            raise ToolFailure(f"{path}: not a regular file")
        with os.fdopen(handle, "rb") as stream:
            if state.st_size > MAX_FILE_BYTES:
                raise ToolFailure(f"{path}: {state.st_size} bytes, more than {MAX_FILE_BYTES}")
            content = stream.read(MAX_FILE_BYTES + 1)
        try:
            return content.decode("utf-8")
        except UnicodeDecodeError as error:
            raise ToolFailure(f"{path}: not UTF-8 text (byte {error.start})") from error

    def write(self, path: str, text: str) -> int:
        """Write a file, whole or not at all, folders included; the bytes. Raises ToolFailure."""
        content = text.encode("utf-8", "replace")
        if len(content) > MAX_FILE_BYTES:
            raise ToolFailure(f"{path}: {len(content)} bytes, more than {MAX_FILE_BYTES}")
        with self._folder(path, make=True) as (folder, name):
            beside = f".{os.urandom(6).hex()}.tmp"
            try:
                state = os.stat(name, dir_fd=folder, follow_symlinks=False)
            except FileNotFoundError:
                mode = 0o644
            else:
                if not stat.S_ISREG(state.st_mode):
                    raise ToolFailure(f"{path}: there is something that is not a regular file")
                mode = stat.S_IMODE(state.st_mode)
            try:
                flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
                handle = os.open(beside, flags, mode, dir_fd=folder)
                with os.fdopen(handle, "wb") as stream:
                    stream.write(content)
                    os.fchmod(handle, mode)
                os.replace(beside, name, src_dir_fd=folder, dst_dir_fd=folder)
            except OSError as error:
                raise ToolFailure(_said(path, error)) from error
        return len(content)

    def walk(self, path: str = "") -> Iterator[tuple[str, int, str]]:
        """(path, open directory, name) of every regular file below `path`, in a fixed order.

        Raises ToolFailure."""
        with self._folder(f"{path}/." if path else ".") as (top, _):
            for base, folders, files, handle in os.fwalk(".", dir_fd=top, follow_symlinks=False):
                folders.sort()
                for name in sorted(files):
                    state = os.stat(name, dir_fd=handle, follow_symlinks=False)
                    if stat.S_ISREG(state.st_mode):
                        inner = os.path.normpath(os.path.join(path or ".", base, name))
                        yield inner, handle, name

    @contextmanager
    def _folder(self, path: str, make: bool = False) -> Iterator[tuple[int, str]]:
        """The open directory that holds `path`, and the path's last step."""
        given = path.removesuffix("/.")
        prefix = str(self.root) + "/"
        if path.startswith(prefix):  # a command has seen the whole path
            path = path[len(prefix) :]
        parts = [part for part in path.split("/") if part not in ("", ".")]
        if path.startswith("/") or ".." in parts or "\0" in path:
            raise ToolFailure(f"{given}: outside the working directory; name a path inside it")
        if not parts and not path.endswith("."):
            raise ToolFailure("the path is empty")
        *folders, name = parts if not path.endswith("/.") and parts else [*parts, "."]
        handles = [os.open(self.root, os.O_RDONLY | os.O_DIRECTORY)]
        try:
            for step in folders:
                if make:
                    try:
                        os.mkdir(step, dir_fd=handles[-1])
                    except FileExistsError:
                        pass
                flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
                handles.append(os.open(step, flags, dir_fd=handles[-1]))
            yield handles[-1], name
        except OSError as error:
            raise ToolFailure(_said(given, error)) from error
        finally:
            for handle in handles:
                os.close(handle)


def _said(path: str, error: OSError) -> str:
    what = {
        "FileNotFoundError": "there is no such file",
        "NotADirectoryError": "not a folder, or a symbolic link, which is not followed",
        "IsADirectoryError": "a folder",
    }.get(type(error).__name__, error.strerror or "cannot be opened")
    if error.errno == 40:  # ELOOP: O_NOFOLLOW met a link
        what = "a symbolic link, which is not followed"
    return f"{path}: {what}"
