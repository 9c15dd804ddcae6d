"""`localspec doctor`: what this machine has, what is slow, and the command that helps."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

import click

from localspec import formats
from localspec.cli.shared_options import WORKERS

if TYPE_CHECKING:
    from localspec.cli.settings_file import SettingsFile
    from localspec.doctor.facts import MachineFacts

_DISTURBED: Final = "other programs were running"


@click.command("doctor")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@WORKERS
@click.pass_obj
def command(settings: SettingsFile | None, as_json: bool, rpc: tuple[str, ...]) -> None:
    """Look at llama.cpp's build, devices, memory and speed, and say what would help.

    Takes a few seconds, reads nothing of yours and sends nothing (but a hello to workers that you
    name): what it prints, but for the addresses of these workers, can be shown to others.
    """
    from localspec.doctor.facts import machine_facts  # noqa: PLC0415 - it needs llama.cpp
    from localspec.doctor.findings import findings  # noqa: PLC0415

    facts = machine_facts(_threads_asked(settings), workers=rpc)
    found = findings(facts)
    if as_json:
        listed = [asdict(finding) | {"level": finding.level.value} for finding in found]
        click.echo(json.dumps({"facts": _fact_data(facts), "findings": listed}, indent=2))
        return
    for line in [*_fact_lines(facts), *_attention_lines(), ""]:
        click.echo(line)
    for finding in found:
        click.echo(f"{finding.level.value}: {finding.what}")
        if finding.remedy:
            click.echo(f"    {finding.remedy}")
    if not found:
        click.echo("Nothing stands in the way.")


def _threads_asked(settings: SettingsFile | None) -> int:
    """The most threads that the settings file asks for, for any command."""
    tables = settings.values.values() if settings is not None else ()
    asked = (table.get("threads") for table in tables)
    return max((n for n in asked if isinstance(n, int)), default=0)


def _attention_lines() -> list[str]:
    """The results about flash attention, for every way in which a model was loaded here."""
    from localspec.loading.measurements.attention import measured_here  # noqa: PLC0415 - it needs llama.cpp
    from localspec.loading.measurements.measured_costs import profile_store  # noqa: PLC0415

    found = measured_here(profile_store())
    off = [choice.gain for choice in found if not choice.flash]
    if not found:
        return []
    faster = f", up to {max(off):.1f}× as fast" if off else ""
    runs = f"{len(off)} of {len(found)} ways to run models that were measured"
    return [f"attention   {runs} do without flash attention{faster}"]


def _fact_data(facts: MachineFacts) -> dict[str, Any]:
    """The facts for programs; a bandwidth that was disturbed is null, and the reason is there."""
    data = asdict(facts) | {"bandwidth_unknown": _DISTURBED if facts.busy else None}
    if facts.busy:
        data |= {"bandwidth": None, "bandwidth_one": None}
    return data


def _fact_lines(facts: MachineFacts) -> list[str]:
    devices = [
        f"device      {device.label}: {device.name},"
        f" {formats.size(device.free)} free of {formats.size(device.total)}"
        f"{', not used unless --device names it' if device.left_out else ''}"
        for device in facts.devices
    ]
    read = f"{facts.bandwidth / 1e9:.0f} GB/s ({facts.bandwidth_one / 1e9:.0f} by one thread)"
    most = f"most {facts.bandwidth / 5e9:.1f} tokens/s without drafting"
    if facts.busy:
        read = most = f"an unknown speed: {_DISTURBED}"
    return [
        f"versions    localspec {facts.localspec}, llama-cpp-python {facts.llama_cpp},"
        f" Python {facts.python}",
        f"backends    {', '.join(facts.backends)}",
        f"processor   {facts.processor}, {facts.cores} cores, {facts.logical} threads;"
        f" localspec uses {facts.threads}"
        f"{f', the settings file asks for {asked}' if (asked := facts.threads_asked) else ''}",
        f"built for   {', '.join(facts.built_for) or 'no instruction set that it names'}"
        f"{f', by {facts.compiler}' if facts.compiler else ''}"
        f"{f'; chosen for this processor: {facts.variant}' if facts.variant else ''}",
        f"memory      {formats.size(facts.memory_free)} free of {formats.size(facts.memory_total)},"
        f" read at {read}",
        *(devices or ["device      no accelerator"]),
        *(
            f"worker      {worker.endpoint}: {formats.size(worker.free)} free of"
            f" {formats.size(worker.total)}, answers within {worker.answer_s * 1000:.1f} ms"
            for worker in facts.workers
            if not worker.problem
        ),
        f"so          a model of 5 GB on the CPU writes at {most}",
    ]
