"""`localspec worker`: this machine's memory and devices for another one."""

from __future__ import annotations

import ipaddress

import click

from localspec.cli import option_types as types
from localspec.cli.shared_options import THREADS, option, with_options

PORT = 50052  # as in llama.cpp's own server


@click.command(name="worker")
@with_options(
    option("--host", types.plain_text, "Address to listen at.", "ADDRESS", default="127.0.0.1"),
    option(
        "--port",
        click.IntRange(0, 65535),
        "Port to listen at; 0 for any that is free.",
        default=PORT,
    ),
    THREADS,
    option(
        "-dev --device",
        types.devices,
        "Devices to lend, with commas between, or none for the CPU; `localspec doctor` names"
        " them.  [default: the accelerators, the CPU where there are none]",
        "NAMES",
    ),
    option(
        "--memory",
        click.FloatRange(0, 1e6, min_open=True),
        "GB of each device that may be taken.  [default: what is free]",
        "GB",
        callback=types.no_nan,
    ),
    click.option(
        "--force", is_flag=True, help="Listen at an address that other networks reach, too."
    ),
)
def command(
    *,
    host: str,
    port: int,
    threads: int | None,
    device: tuple[str, ...] | None,
    memory: float | None,
    force: bool,
) -> None:
    """Lend this machine's memory and devices to another one, which shares a target's layers.

    There: `localspec chat PAIR --workers HOST:PORT`, with the same llama-cpp-python. One at a time
    may use it. What is said is neither encrypted nor signed: for networks that you trust, or
    through a tunnel (ssh -N -L 50052:127.0.0.1:50052 HOST). Ctrl+C ends it.
    """
    from localspec.engine.llama import default_threads  # noqa: PLC0415 - it needs llama.cpp
    from localspec.engine.llama.platform import rpc  # noqa: PLC0415 - it needs llama.cpp

    rpc.lend(
        host,
        port,
        threads=threads or default_threads(),
        device=device,
        memory=None if memory is None else round(memory * 1e9),
        force=force,
        ready=lambda address: click.echo(
            f"{_how_to_reach(address)}  (Ctrl+C ends the worker)", err=True
        ),
    )


def _how_to_reach(address: str) -> str:
    """The command for the other machine, which connects only to private addresses."""
    host, _, port = address.rpartition(":")
    at = ipaddress.ip_address(host)
    if at.is_global:
        return (
            f"ssh -N -L {port}:{address} HOST, and localspec chat PAIR --workers 127.0.0.1:{port}"
        )
    place = f"HOST:{port}" if at.is_unspecified else address
    return f"localspec chat PAIR --workers {place}"
