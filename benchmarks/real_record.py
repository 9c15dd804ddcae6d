"""Record what a real target answers to questions of eight kinds, token by token.

For every turn the ids of the prompt and of the answer are kept (`benchmarks/real_prompts.py` asks).
What prompt lookup would have copied, and how much of that the target would have accepted, follows
from these ids alone, above temperature 0 under the coupled rule (`benchmarks/real_lookup.py`). The
file is JSON in lines, compressed with gzip; a run that was stopped goes on where it ended. On two
cores ten questions of each kind take about half an hour with Qwen2.5-Coder-1.5B in Q4_K_M:

    uv run python -m benchmarks.real_record TARGET.gguf --output benchmarks/data/NAME.jsonl.gz
"""

from __future__ import annotations

import argparse
import gzip
import json
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

from llama_cpp.llama_chat_format import Jinja2ChatFormatter

from benchmarks.real_prompts import Question, questions
from localspec.engine.cancel import Cancel
from localspec.engine.drafters.lookup import Lookup
from localspec.engine.length.gamma import FixedGamma
from localspec.engine.llama import Context, ContextOptions, Model
from localspec.engine.round.generate import Engine
from localspec.engine.round.generate_settings import GenerateSettings
from localspec.engine.round.params import Accept, SamplingParams

MOST_PROMPT = 1500


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("target", type=Path)
    parser.add_argument("--each", type=int, default=10, help="questions of each kind")
    parser.add_argument("--tokens", type=int, default=320, help="of an answer at most")
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--output", type=Path, required=True)
    arguments = parser.parse_args()
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    done = sum(1 for _ in lines(arguments.output))
    options = ContextOptions(n_ctx=4096, threads=arguments.threads, flash_attention=True)
    with Model.load(arguments.target) as model, Context(model, options) as context:
        engine = Engine(context, lookup=Lookup(context.n_ctx, model.is_end))
        for at, question in enumerate(questions(arguments.each)):
            if at < done:
                continue
            sampling = SamplingParams(temperature=arguments.temperature, seed=at)
            started = perf_counter()
            found = record(engine, question, sampling, arguments.tokens)
            with gzip.open(arguments.output, "at", encoding="utf-8") as file:
                file.write(json.dumps(found, separators=(",", ":")) + "\n")
            sizes = [(len(turn["prompt"]), len(turn["answer"])) for turn in found["turns"]]
            print(at, question.kind, sizes, f"{perf_counter() - started:.0f} s", flush=True)


def lines(path: Path) -> list[dict[str, Any]]:
    """What was recorded so far."""
    if not path.exists():
        return []
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def record(
    engine: Engine, question: Question, sampling: SamplingParams, tokens: int
) -> dict[str, Any]:
    """The turns of one conversation: ids of each prompt (as far as it is new) and answer."""
    model = engine.target.model
    render = Jinja2ChatFormatter(model.chat_template or "", eos_token="", bos_token="")
    messages: list[dict[str, str]] = []
    turns: list[dict[str, Sequence[int]]] = []
    for said in question.turns:
        messages.append({"role": "user", "content": said})
        text = render(messages=messages).prompt  # type: ignore[arg-type] # its own names of roles
        ids = model.tokenize(text, add_special=True, parse_special=True)[:MOST_PROMPT]
        answer = written(engine, ids, sampling, tokens)
        turns.append({"prompt": ids, "answer": answer})
        raw = b"".join(map(model.piece, answer))
        messages.append({"role": "assistant", "content": raw.decode("utf-8", "replace")})
    return {"kind": question.kind, "language": question.language, "turns": turns}


def written(engine: Engine, ids: Sequence[int], sampling: SamplingParams, tokens: int) -> list[int]:
    """The answer's ids; nothing is drafted, so that no batch of another size rounds differently."""
    list(engine.prefill(ids, Cancel()))
    how = GenerateSettings(sampling=sampling, accept=Accept.COUPLED, n_predict=tokens)
    return [
        token
        for done in engine.generate(ids, how, FixedGamma(0), Cancel())
        for token in done.tokens
    ]


if __name__ == "__main__":
    main()
