"""Where the models lie and how they run: devices, layers, threads, caches. llama.cpp's names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from localspec.pairs.memory.need import CACHE_TYPES

MAX_THREADS = 512  # ggml's own limit


def _layers(_ctx: click.Context, _param: click.Parameter, value: str | None) -> int | None:
    if value is None or value == "auto":
        return None
    if value == "all":
        return -1
    try:
        number = int(value)
    except ValueError:
        number = -2
    if number < -1 or number > 2**31 - 1:
        raise click.BadParameter(f"{value!r} is neither a number of layers nor auto or all.")
    return number


def _threads(_ctx: click.Context, _param: click.Parameter, value: int | None) -> int | None:
    return None if value is None or value < 1 else value


def _devices(
    _ctx: click.Context, _param: click.Parameter, value: str | None
) -> tuple[str, ...] | None:
    if value is None:
        return None
    names = tuple(name.strip() for name in value.split(",") if name.strip())
    return () if names == ("none",) else names


def _servers(_ctx: click.Context, _param: click.Parameter, value: str | None) -> tuple[str, ...]:
    return tuple(each.strip() for each in (value or "").split(",") if each.strip())


def _option(*names: str, **how: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    return click.option(*names, **how)


def _thread_option(*names: str, text: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    return _option(
        *names, type=click.IntRange(-1, MAX_THREADS), metavar="N", callback=_threads, help=text
    )


def _layer_option(*names: str, text: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    return _option(*names, metavar="N|auto|all", callback=_layers, help=text)


def _cache_option(*names: str, text: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    return _option(*names, type=click.Choice(CACHE_TYPES), help=text)


GPU_LAYERS = _layer_option(
    *("-ngl", "--n-gpu-layers"),
    text="Layers on the GPU, if there is one.  [default: as many as fit]",
)

BUT_THREADS: tuple[Callable[[Callable[..., Any]], Callable[..., Any]], ...] = (
    _thread_option(
        *("-tb", "--threads-batch"),
        text="CPU threads for batches: prompts and checking.  [default: --threads]",
    ),
    _thread_option(*("-td", "--draft-threads", "draft_threads"), text="The same for the draft."),
    GPU_LAYERS,
    _layer_option(
        *("-ngld", "--draft-n-gpu-layers", "draft_n_gpu_layers"), text="The same for the draft."
    ),
    _option(
        *("-dev", "--device"),
        metavar="NAMES",
        callback=_devices,
        help="Devices to use, with commas between, or none; `localspec doctor` names them.",
    ),
    _option(
        *("-devd", "--draft-device", "draft_device"),
        metavar="NAMES",
        callback=_devices,
        help="The same for the draft.  [default: --device]",
    ),
    _option(
        "--rpc",
        metavar="HOST:PORT,...",
        callback=_servers,
        help="Use the devices of these llama.cpp RPC servers for the target as well.",
    ),
    _option(
        *("-fa", "--flash-attn"),
        type=click.Choice(["on", "off", "auto"]),
        default="auto",
        show_default=True,
        help="Flash attention.",
    ),
    _cache_option(*("-ctk", "--cache-type-k"), text="Type of the cached keys.  [default: f16]"),
    _cache_option(*("-ctv", "--cache-type-v"), text="Type of the cached values.  [default: f16]"),
    _option(
        "--mmap/--no-mmap",
        default=True,
        show_default=True,
        help="Map the weights, so that they may be larger than the memory.",
    ),
    _option("--mlock", is_flag=True, help="Keep the weights in memory, never in swap."),
)
"""All but `--threads`."""

PLACEMENT = (
    _thread_option(
        *("-t", "--threads"), text="CPU threads.  [default: as tuned, else the physical cores]"
    ),
    *BUT_THREADS,
)
