"""Shows and changes the parameters of a conversation, in the words of a user."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from itertools import starmap
from pathlib import Path
from typing import Any

from localspec import formats, private
from localspec.chat.advice import SamplingAdvice, SettingSource
from localspec.chat.dialects.shapes import ThinkingOptions
from localspec.chat.figures.benefit import guessed
from localspec.chat.settings import ChatSettings, Gamma
from localspec.engine.round.params import CHAIN, MOST_WHOLE
from localspec.errors import LocalspecError, UsageError
from localspec.limits import MAX_GAMMA
from localspec.pairs.disk.folders import data_folder
from localspec.safe_text import one_line

_FIELDS = {each.name: name for name, each in CHAIN.items()}
# What holds where nothing was chosen, and its meaning.
_USUAL = {
    "seed": ("none", "another for each answer"),
    "n-predict": ("-1", "no limit"),
    "stop": ("none", "no text ends an answer"),
}
NAMES = (*_FIELDS, *_USUAL)
# What Ollama, llama.cpp and OpenAI's protocol call them.
ALSO = {
    "num-predict": "n-predict",
    "max-tokens": "n-predict",
    "num-ctx": "ctx-size",
    "n-ctx": "ctx-size",
    **{
        spelt: each.name
        for name, each in CHAIN.items()
        for other in (name, *each.also, *each.flags[1:])
        if (spelt := other.lstrip("-").replace("_", "-")) != each.name
    },
}
_HOTTEST = 2.0  # OpenAI's protocol allows no more


def _field(name: str) -> str:
    return _FIELDS.get(name, name.replace("-", "_"))


def shown(
    settings: ChatSettings, context_size: int, advice: SamplingAdvice, *, own_size: bool = False
) -> list[str]:
    """Every parameter with its value and its source, except for llama.cpp's defaults.

    Args:
        settings: those in force.
        context_size: how many tokens the context holds; 0 while unknown.
        advice: the settings advised for the model.
        own_size: whether the user chose the size of the context.
    """
    found, yours = dict[str, tuple[str, str]](), advice.words(SettingSource.USER)
    for field, source in advice.sources(settings).items():
        words = "" if source is SettingSource.DEFAULT else advice.words(source)
        found[CHAIN[field].name] = _spelt(getattr(settings.sampling, field)), words
    for name, (usual, meaning) in _USUAL.items():
        of = settings.sampling if name == "seed" else settings
        value = _spelt(getattr(of, _field(name)))
        found[name] = value, meaning if value == usual else yours
    if context_size:
        found["ctx-size"] = str(context_size), yours if own_size else "chosen by localspec"
    return [
        f"{name} {value}{f' ({source})' if source else ''}"
        for name, (value, source) in found.items()
    ]


def temperature(settings: ChatSettings, advice: SamplingAdvice) -> str:
    """The temperature, and where it comes from."""
    source = advice.sources(settings)["temperature"]
    return f"{settings.sampling.temperature:g} ({advice.words(source)})"


def parse(text: str) -> tuple[str, str]:
    """The name and the value in what follows ``/set``, also ``parameter num_ctx 4096`` (Ollama's).

    Other programs' names become ours; both parts may be empty.
    """
    name, _, value = text.removeprefix("parameter ").strip().partition(" ")
    plain = name.lower().replace("_", "-")
    return ALSO.get(plain, plain), value.strip()


def doubt(settings: ChatSettings) -> str:
    """What is wrong with the settings; empty if nothing is."""
    if settings.sampling.temperature <= _HOTTEST:
        return ""
    return f"Above {_HOTTEST:g} an answer is hardly more than noise; 0 to 1 is usual."


def unknown(name: str) -> UsageError:
    """The error that there is no such parameter."""
    return UsageError(f"there is no parameter {name}", f"There is {', '.join(NAMES)}, ctx-size.")


def changed(settings: ChatSettings, name: str, value: str, advice: SamplingAdvice) -> ChatSettings:
    """`settings` with another value; ``default`` takes a choice back.

    Raises:
        UsageError: the parameter does not exist, or the value is not a number.
        SamplingError: the value makes no distribution.
    """
    plain, _ = parse(name)
    if plain not in NAMES:
        raise unknown(name)
    if value == "default" and plain in _USUAL:
        value, _ = _USUAL[plain]
    if plain == "stop":
        return replace(settings, stop=() if value == "none" else (value,))
    mine = {_field(plain)}.intersection(CHAIN)
    if mine and value == "default":
        return advice.settled(replace(settings, chosen=settings.chosen - mine))
    try:
        if plain == "n-predict":
            return replace(settings, n_predict=_limit(value))
        taken: Any = _seed(value) if plain == "seed" else CHAIN[_FIELDS[plain]].kind(value)
    except ValueError:
        raise UsageError(f"{plain} cannot be “{value}”", "Say a number.") from None
    sampling = replace(settings.sampling, **{_field(plain): taken})
    repeatable = settings.repeatable if plain != "seed" else taken is not None
    return replace(
        settings, sampling=sampling, chosen=settings.chosen | mine, repeatable=repeatable
    )


def _limit(value: str) -> int:
    """A number of tokens, -1 for no limit. Raises UsageError: 64 bits do not hold it."""
    if (number := int(value)) > MOST_WHOLE:
        raise UsageError(f"n-predict cannot be {value}", "Say how many tokens, or -1.")
    return max(-1, number)


def _seed(value: str) -> int | None:
    return None if value in ("none", "-1") else int(value)


def thinking(settings: ChatSettings, can: ThinkingOptions) -> str:
    """How the model is asked to think, in a line."""
    if not ways_to_think(can):
        return "the model's chat template knows no thoughts"
    off = can.switch and settings.reasoning == "off"
    words: list[str] = [settings.reasoning] if can.switch and settings.reasoning != "auto" else []
    if settings.reasoning_effort in can.efforts and not off:
        words.append(f"effort {settings.reasoning_effort}")
    if can.budget and settings.reasoning_budget >= 0 and not off:
        words.append(f"{formats.count(settings.reasoning_budget)} tokens at most")
    return ", ".join(words) or "as the model's chat template has it"


def ways_to_think(can: ThinkingOptions) -> list[str]:
    """The words that `/think` takes for a model; one that ends in a space needs a number."""
    ways = [*(("off", "on") if can.switch else ()), *can.efforts]
    ways += ["auto"] if ways else []
    return [*ways, "budget "] if can.budget else ways


def asked_to_think(settings: ChatSettings, can: ThinkingOptions, words: str) -> ChatSettings:
    """`settings` with what the words after `/think` ask for.

    Raises:
        UsageError: the model cannot be asked that.
    """
    ways = ways_to_think(can)
    name, _, value = words.lower().partition(" ")
    if not ways:
        raise UsageError(thinking(settings, can), "Nothing can be asked of them.")
    remedy = f"There is {', '.join(ways).replace('budget ', 'budget N (tokens, or none)')}."
    if f"{name} " in ways:
        tokens = -1 if value.strip() in ("none", "auto") else whole("budget", value.strip(), remedy)
        return replace(settings, reasoning_budget=tokens)
    if value or name not in ways:
        raise UsageError(f"this model cannot think “{one_line(words, 40)}”", remedy)
    if name == "auto":
        return replace(settings, reasoning="auto", reasoning_effort="", reasoning_budget=-1)
    if name in ("off", "on"):
        return replace(settings, reasoning=name)  # type: ignore[arg-type]
    # To ask for an effort is to ask for a thought.
    switch = "on" if settings.reasoning == "off" else settings.reasoning
    return replace(settings, reasoning=switch, reasoning_effort=name)


def presets() -> dict[str, str]:
    """The system prompts that are kept, by name."""
    return private.read_json(_presets_path(), dict[str, str]) or {}


def preset(name: str) -> str:
    """The system prompt kept as `name`. Raises UsageError: there is none."""
    kept = presets()
    if name not in kept:
        there = ", ".join(kept) or "none is kept yet: /preset save NAME"
        raise UsageError(f"there is no system prompt {one_line(name, 60)}", f"There is {there}.")
    return kept[name]


def keep_preset(name: str, text: str) -> None:
    """Keep a system prompt under a name.

    Raises:
        UsageError: it is empty.
        LocalspecError: the file cannot be read or written.
    """
    if not text:
        raise UsageError("there is no system prompt to keep", "Say /system TEXT first.")
    _change_presets(lambda kept: kept | {name: text})


def forget_preset(name: str) -> None:
    """Forget the system prompt kept as `name`.

    Raises:
        UsageError: there is none.
        LocalspecError: the file cannot be read or written.
    """
    preset(name)
    _change_presets(lambda kept: {key: text for key, text in kept.items() if key != name})


def _change_presets(change: Callable[[dict[str, str]], dict[str, str]]) -> None:
    try:
        kept = private.read_to_change(_presets_path(), dict[str, str]) or {}
        private.write_json(_presets_path(), change(kept))
    except OSError as error:
        raise LocalspecError(
            f"{_presets_path()} cannot be changed: {error.strerror}",
            "Check its permissions and the room on the disk.",
        ) from None


def _presets_path() -> Path:
    return data_folder() / "presets.json"


def totals(answers: Iterable[Mapping[str, Any]]) -> str:
    """The figures of all answers of a conversation, pair by pair."""
    by_pair: dict[str, list[tuple[int, float, int, int]]] = {}
    for figures in answers:
        tokens, speed = figures.get("generated_tokens"), figures.get("tokens_per_second")
        if isinstance(tokens, int) and isinstance(speed, int | float) and speed > 0:
            drafted, accepted = figures.get("drafted_tokens"), figures.get("accepted_tokens")
            known = by_pair.setdefault(str(figures.get("pair", "?")), [])
            if isinstance(drafted, int) and isinstance(accepted, int):
                known.append((tokens, tokens / speed, drafted, accepted))
            else:
                known.append((tokens, tokens / speed, 0, 0))
    return "\n".join(starmap(_total, by_pair.items())) or "no answer has figures yet"


def _total(pair: str, answers: list[tuple[int, float, int, int]]) -> str:
    tokens, seconds = sum(one[0] for one in answers), sum(one[1] for one in answers)
    drafted, accepted = sum(one[2] for one in answers), sum(one[3] for one in answers)
    said = f", {guessed(drafted, accepted)}" if drafted else ""
    return (
        f"{one_line(pair, 40)}: {formats.counted(len(answers), 'answer')},"
        f" {formats.count(tokens)} tokens written in {formats.seconds(seconds)},"
        f" {formats.speed(tokens / seconds)} tokens/s{said}"
    )


def whole(name: str, value: str, remedy: str) -> int:
    """A number of tokens, as a user says it.

    Raises:
        UsageError: it is none, with `remedy`.
    """
    if not (value.isascii() and value.isdigit() and len(value) < 9):
        raise UsageError(f"{name} cannot be “{value}”", remedy)
    return int(value)


def gamma(value: str) -> Gamma:
    """How many tokens to draft, as a user says it.

    Raises:
        UsageError: it is neither a number that can be drafted nor ``auto``.
    """
    if value == "auto":
        return "auto"
    remedy = f"Say /gamma auto, or how many tokens to draft: 0 to {MAX_GAMMA}."
    if (number := whole("gamma", value, remedy)) > MAX_GAMMA:
        raise UsageError(
            f"gamma cannot be {number}", f"At most {MAX_GAMMA} tokens are drafted at a time."
        )
    return number


def _spelt(value: object) -> str:
    if value in (None, ()):
        return "none"
    if isinstance(value, tuple):
        return ", ".join(one_line(str(one), 40) for one in value)
    return f"{value:g}" if isinstance(value, float) else str(value)
