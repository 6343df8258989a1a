"""`coevo watch`: the report page of runs, served on the loopback interface until interrupted."""

from __future__ import annotations

import argparse
import socket

from coevo.errors import InputError
from coevo.report.serve import HOST, PageServer, Source
from coevo.runs import load_run


def run(arguments: argparse.Namespace) -> None:
    """`coevo watch`. Raises RunError or InputError for what a user can mend."""
    if not 0 <= arguments.port <= 65535:
        raise InputError(f"--port is {arguments.port}; expected 0 to 65535")
    if not 1 <= arguments.every <= 3600:
        raise InputError(f"--every is {arguments.every:g}; expected 1 to 3600 seconds")
    for path in arguments.runs:
        load_run(path)  # refused here rather than in the page
    source = Source(arguments.runs, arguments.every)
    source.page()  # so is what cannot be compared
    try:
        server = PageServer(source, arguments.port)
    except OSError as error:
        raise InputError(
            f"port {arguments.port} on {HOST} cannot be used ({error.strerror}): another program, "
            "perhaps another `coevo watch`, has it. Choose one with --port N, or any free one with "
            "--port 0"
        ) from error
    with server:
        port = server.server_port
        print(f"watching on http://{HOST}:{port}/ (Ctrl-C ends it)")
        print(
            "from another machine, run there and open the same address: "
            f"ssh -N -L {port}:{HOST}:{port} {socket.gethostname()}",
            flush=True,
        )
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            print()
