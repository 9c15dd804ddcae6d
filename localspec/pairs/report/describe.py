"""A pair's report as lines for people and as data for programs."""

from __future__ import annotations

import shlex
from dataclasses import asdict
from typing import Any

from localspec import formats
from localspec.pairs.gguf import head_checks
from localspec.pairs.memory.need import MemoryNeed, ModelSetup
from localspec.pairs.memory.outlook import MemoryFit, MemoryOutlook
from localspec.pairs.memory.placement import PROGRAM, MemoryPlan
from localspec.pairs.report.examine import TOO_LARGE, DraftCandidate, PairReport
from localspec.pairs.report.model_source import ModelSource
from localspec.pairs.report.nearby_heads import HeadOffer
from localspec.pairs.report.vocabulary import VocabularyReport
from localspec.safe_text import one_line

MOST_CANDIDATES = 12
_SEVERAL = 2


def lines(report: PairReport) -> list[str]:
    """Render `report` for people, one finding per line."""
    found = [_model_line("target", report.target)]
    found += [f"file        {line}" for line in (file_line(report),) if line]
    if report.draft is not None:
        found.append(f"{_model_line('draft', report.draft)} ({report.draft_reason})")
        found += [_model_line(_role(each), each) for each in report.besides]
        if report.left_out:
            found.append(f"draft       {report.left_out}: {_left_out(report)}")
    else:
        found.append(f"draft       none: {report.draft_reason}")
        if report.candidates:
            found.append("lookup      drafts all the same: it copies what repeats, without a model")
    if head_checks.has_usable_mtp(report.target.header):
        found.append("head        inside the target: a layer that predicts more tokens (mtp)")
    if report.offer is not None:
        found.append(f"head        not used yet: {offer_line(report.offer)}")
    if report.vocabulary is not None:
        found.append(f"vocabulary  {_vocabulary(report.vocabulary)}")
    found.append(f"memory      {memory_line(report.outlook)}")
    found += _plan_lines(report.without or report.outlook)
    found.append(f"licence     {licence_line(report)}")
    found += [f"  {line}" for line in candidate_lines(report.candidates)]
    return found


def _left_out(report: PairReport) -> str:
    """What the next load does, and whether the target may have the draft's room."""
    room = ", with its room" if report.without else ""
    return f"the next load without --draft-anyway leaves it out{room}"


def draft_lines(report: PairReport, used: str | None, *, lookup: bool) -> list[str]:
    """Say what drafts for a target now, and which other drafts would fit, or why not.

    Args:
        report: of the target.
        used: the models that draft.
        lookup: whether repeated text is copied as well.
    """
    found, own = [drafting_line(used, lookup=lookup)], report.draft
    if own is not None:
        auto = " and ".join(f"{it.label}, {formats.size(it.n_bytes)}" for it in report.drafts)
        found.append(f"auto: {auto}, {report.draft_reason}; and lookup, which copies what repeats")
    if head_checks.has_usable_mtp(report.target.header):
        found.append("mtp: a head inside the target, which predicts more tokens")
    if report.offer is not None:
        found.append(f"a head next to the target: {offer_line(report.offer)}")
    shown = tuple(one for one in report.candidates if one.fits or one.on_disk)
    if others := len(report.candidates) - len(shown):
        drafts = formats.counted(others, "draft")
        found.append(f"not named: {drafts} that could be fetched, but would not fit this target")
    return found + candidate_lines(shown)


def offer_line(offer: HeadOffer) -> str:
    """Name a head that could draft, its size, and the option that adds it."""
    head, smaller = offer.head, offer.smaller
    less = f"; a smaller one: {_short(smaller)}, {formats.size(smaller.n_bytes)}" if smaller else ""
    size = formats.size(head.n_bytes)
    return f"{_short(head)}, {size}, fits: --draft auto,{offer.kind} adds it{less}"


def file_line(report: PairReport) -> str:
    """Say which file of the target's repository suits this machine, and why; empty if unknown."""
    best = report.suited
    if best is None:
        return ""
    why = f"the best of {best.of} files that leaves room for {best.n_ctx:,} tokens of context"
    if best.rather_than:
        faster = formats.times(best.times_as_fast)
        why = (
            f"of {best.of} files, it is about as good as {best.rather_than} and, as passes were"
            f" measured here, {faster} as fast with drafting"
        )
    if report.target.files[0].name == best.name:
        return f"{best.quant} is {why}"
    size, name = formats.size(best.n_bytes), best.quant or best.name
    pull = shlex.join(["localspec", "pull", f"{report.target.repo}:{best.name}"])
    return f"{name} ({size}) suits this machine better: {why} (`{pull}` takes it)"


def _short(source: ModelSource) -> str:
    return source.files[0].name if source.files else source.paths[0].name


def drafting_line(used: str | None, *, lookup: bool) -> str:
    """Say what drafts: models by name, and lookup."""
    if used is None:
        copies = "lookup alone, which copies what repeats; no model drafts"
        return f"drafting now: {copies if lookup else 'nothing'}"
    return f"drafting now: {used}{' and lookup' if lookup else ''}"


def _role(source: ModelSource) -> str:
    return "head" if head_checks.is_head(source.header) else "draft"


def _vocabulary(compared: VocabularyReport) -> str:
    """Say whether and how the draft can serve."""
    if compared.alike is None:
        return f"{'matches' if compared.compatible else 'does not match'}: {compared.reason}"
    share = formats.percent(compared.alike)
    return f"another one, cross-vocabulary: {share} of a text is spelled alike ({compared.reason})"


def memory_line(outlook: MemoryOutlook) -> str:
    """Say how much memory a pair needs and whether it is available."""
    need = outlook.fit
    sentence = {
        "fits": "it fits",
        "tight": f"tight: of {formats.size(need.total)} in all, other programs hold too much",
        "too large": f"too large for {formats.size(need.total)}: weights would be read from disk",
    }[need.verdict]
    return (
        f"about {formats.size(need.needed)} with {outlook.n_ctx:,} tokens of context,"
        f" {formats.size(need.available)} available: {sentence}"
    )


def _plan_lines(outlook: MemoryOutlook) -> list[str]:
    """Sizes first, then what was given up and what the user could do."""
    found = outlook.plan
    if found is None:
        return [f"plan        {outlook.refusal}"]
    where = f", {formats.size(found.device)} of it on the GPU" if found.device else ""
    if moved := found.target.cpu_moe:
        where += f", the experts of {formats.counted(moved, 'layer')} in main memory"
    more = f"; twice the context: {formats.size(found.doubled)} more" if found.doubled else ""
    first = (
        f"plan        {found.target.n_ctx:,} tokens of context, {found.target.cache_k} cache:"
        f" {formats.size(found.total)}{where}, and {formats.size(PROGRAM)} for the program"
        f"{more}"
    )
    return [
        first,
        f"  target    {_sizes(found.target_need)}",
        *(f"  draft     {_sizes(need)}" for need in found.draft_needs),
        *(f"  given up: {line}" for line in found.gave_up),
        *(f"  note: {line}" for line in found.advice),
        *(f"  note: {line}" for line in _sharing(found)),
    ]


def _sharing(found: MemoryPlan) -> list[str]:
    """How several accelerators of this machine could share the target in another way."""
    here = [each for each in found.free.devices if each.target and not each.worker]
    if len(here) < _SEVERAL:
        return []
    return [
        "the devices take whole layers in turn; with --split-mode tensor all compute every layer"
        " together (elsewhere, on two RTX 5060 Ti, 1.68 times as fast, and 3.14 times with MTP:"
        " published in sudoingX/qwen38-mtp)"
    ]


def _sizes(need: MemoryNeed) -> str:
    return ", ".join(f"{part} {formats.size(n_bytes)}" for part, n_bytes in need.parts.items())


def licence_line(report: PairReport) -> str:
    """Name the licences, and what a gated repository requires."""
    once = dict[str, str]()  # some spell the same one with small letters
    for model in report.models:
        name = one_line(model.licence, 80) or "not stated"
        once.setdefault(name.casefold(), name)
    gated = [model.repo for model in report.models if model.gated]
    tail = f"; gated: {', '.join(dict.fromkeys(gated))}" if gated else ""
    return " / ".join(once.values()) + tail


def candidate_lines(candidates: tuple[DraftCandidate, ...]) -> list[str]:
    """Say which drafts would fit a target without one, and why others do not.

    Those that would have to be fetched and are too large take one line together.
    """
    tried = [one for one in candidates if one.on_disk or one.reason != TOO_LARGE]
    found = []
    for one in tried[:MOST_CANDIDATES]:
        word = "fits" if one.fits else "no"
        where = "on this disk" if one.on_disk else "to be fetched"
        size = formats.size(one.bytes)
        found.append(f"{word:5} --draft {one.draft} ({size}, {where}): {one.reason}")
    if len(tried) > MOST_CANDIDATES:
        more = len(tried) - MOST_CANDIDATES
        found.append(f"and {more} more, which `localspec show` lists with --json")
    if len(tried) < len(candidates):
        found.append(f"no {'other ' if tried else ''}draft of the catalogue is small enough")
    return found


def _model_line(role: str, source: ModelSource) -> str:
    state = "on this disk" if not source.missing else f"{formats.size(source.missing)} to fetch"
    return (
        f"{role:11} {source.label}, {one_line(source.header.architecture, 30)},"
        f" {formats.size(source.n_bytes)}, {state}"
    )


def as_data(report: PairReport) -> dict[str, Any]:
    """Render `report` for programs; sizes are in bytes."""
    compared = report.vocabulary
    return {
        "name": report.name or None,
        "target": _model_data(report.target),
        "draft": None if report.draft is None else _model_data(report.draft),
        "draft_reason": report.draft_reason,
        "besides": [_model_data(each) for each in report.besides],
        "vocabulary": compared and asdict(compared) | {"rule": compared.rule or None},
        "memory": fit_data(report.outlook.fit) | {"n_ctx": report.outlook.n_ctx},
        "plan": _plan_data(report.without or report.outlook),
        "left_out": report.left_out or None,
        "suited_file": report.suited and asdict(report.suited),
        "offered_head": offer_data(report.offer),
        "missing_bytes": report.missing,
        "candidates": [asdict(one) for one in report.candidates],
    }


def offer_data(offer: HeadOffer | None) -> dict[str, Any] | None:
    """Render a head that could draft for programs."""
    return None if offer is None else _model_data(offer.head)


def fit_data(need: MemoryFit) -> dict[str, Any]:
    """Render a memory estimate for programs."""
    data = asdict(need)
    sizes = {f"{name}_bytes": data.pop(name) for name in ("needed", "available", "total")}
    return sizes | data


def _plan_data(outlook: MemoryOutlook) -> dict[str, Any]:
    found = outlook.plan
    if found is None:
        return {"fits": False, "reason": outlook.refusal}
    drafts = [_placed_data(*each) for each in zip(found.drafts, found.draft_needs, strict=True)]
    return {
        "fits": True,
        "n_ctx": found.target.n_ctx,
        "cache_type_k": found.target.cache_k,
        "cache_type_v": found.target.cache_v,
        "host_bytes": found.host,
        "device_bytes": found.device,
        "from_disk_bytes": found.from_disk,
        "twice_ctx_bytes": found.doubled,
        "target": _placed_data(found.target, found.target_need),
        "draft": next(iter(drafts), None),
        "besides": drafts[1:],
        "gave_up": list(found.gave_up),
        "advice": list(found.advice),
    }


def _placed_data(setup: ModelSetup, need: MemoryNeed) -> dict[str, Any]:
    sizes = {f"{part}_bytes": n_bytes for part, n_bytes in need.parts.items()}
    split = {"tensor_split": dict(setup.split)} if setup.split else {}
    moe = {"n_cpu_moe": setup.cpu_moe} if setup.cpu_moe else {}
    return {"gpu_layers": setup.gpu_layers} | split | moe | sizes


def _model_data(source: ModelSource) -> dict[str, Any]:
    header = source.header
    return {
        "label": source.label,
        "reference": source.reference or None,
        "paths": [str(path) for path in source.paths],
        "architecture": header.architecture,
        "model_name": header.name or None,
        "vocabulary_size": len(header.tokens or ()),
        "context_length": header.setting("context_length") or None,
        "bytes": source.n_bytes,
        "missing_bytes": source.missing,
        "licence": source.licence or None,
        "gated": source.gated,
        "sha256": [file.sha256 or None for file in source.files],
    }
