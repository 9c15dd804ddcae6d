"""Record rounds for the simulator: confidence and acceptance probability, position by position.

Several kinds of text at temperature 0.8 and 0, a fixed 8 drafted throughout, so that nothing is
left out for looking bad. Takes one to two minutes with the demo pair on two quiet cores. JSON:

    uv run python benchmarks/gamma_record.py --output tests/data/gamma_rounds.json

Other models: --target FILE --draft FILE.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from llama_cpp.llama_chat_format import Jinja2ChatFormatter
from simulator import positions

from localspec.engine.acceptance import Accept
from localspec.engine.cancel import Cancel
from localspec.engine.drafter import ModelDrafter
from localspec.engine.generate import Engine, GenerateSettings
from localspec.engine.length.gamma import FixedGamma
from localspec.engine.llama import Context, ContextOptions, Model
from localspec.engine.sampling import SamplingParams

DEMO = Path(__file__).parent.parent / "tests" / "data" / "toy"
LENGTH = 8

PROMPTS = {
    "story": [
        "Tell me a story about a dog.",
        "Tell me a story about a girl and her boat.",
        "Write a story about two friends in the forest.",
    ],
    "code": [
        "Write a Python function that adds two numbers.",
        "Write a Python function that counts the vowels of a string.",
        "Write a Python class for a stack.",
    ],
    "facts": ["Explain why the sky is blue.", "What do bees do?", "How is bread made?"],
    "talk": ["Hello! How are you today?", "What is 12 plus 7?", "Give me a list of five animals."],
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--target", type=Path, default=next(DEMO.glob("target-*.gguf")))
    parser.add_argument("--draft", type=Path, default=next(DEMO.glob("draft-*.gguf")))
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--output", type=Path, required=True)
    arguments = parser.parse_args()
    with Model.load(arguments.target) as target, Model.load(arguments.draft) as draft:
        options = ContextOptions(n_ctx=2048)
        with Context(target, options) as t, Context(draft, options) as d:
            engine = Engine(t, ModelDrafter(d, target.n_vocab))
            texts = record(engine, arguments.tokens, arguments.seeds)
    document = {
        "target": arguments.target.name,
        "draft": arguments.draft.name,
        "draft_length": LENGTH,
        "texts": texts,
    }
    arguments.output.write_text(json.dumps(document, separators=(",", ":")) + "\n", "utf-8")
    for text in texts:
        mean = sum(text["chances"]) / max(1, len(text["chances"]))
        print(f"{text['kind']:6} {text['temperature']}: {len(text['chances'])} at {mean:.2f}")


def record(engine: Engine, tokens: int, seeds: int) -> list[dict]:
    """One text for every kind and temperature."""
    texts = []
    for kind, prompts in PROMPTS.items():
        for temperature, accept, runs in ((0.8, Accept.TOKEN, seeds), (0.0, Accept.MATCH, 1)):
            found = [
                place
                for prompt in prompts
                for seed in range(runs)
                for place in run(engine, prompt, temperature, accept, seed=seed, tokens=tokens)
            ]
            texts.append(
                {
                    "kind": kind,
                    "temperature": temperature,
                    "confidences": [round(place.confidence, 3) for place in found],
                    "chances": [round(place.chance, 3) for place in found],
                }
            )
    return texts


def run(
    engine: Engine, prompt: str, temperature: float, accept: Accept, *, seed: int, tokens: int
) -> list:
    model = engine.target.model
    render = Jinja2ChatFormatter(model.chat_template or "", eos_token="", bos_token="")
    text = render(messages=[{"role": "user", "content": prompt}]).prompt
    ids = model.tokenize(text, add_special=True, parse_special=True)
    cancel = Cancel()
    list(engine.prefill(ids, cancel))
    settings = GenerateSettings(
        sampling=SamplingParams(temperature=temperature, seed=seed),
        accept=accept,
        n_predict=tokens,
    )
    policy = FixedGamma(LENGTH, learns=True)
    return positions(engine.generate(ids, settings, policy, cancel))


if __name__ == "__main__":
    main()
