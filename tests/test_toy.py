"""The toy pair: what its files promise."""

from __future__ import annotations

import gguf
import pytest

from localspec.engine.cancel import Cancel
from localspec.engine.drafters.model_drafter import ModelDrafter
from localspec.engine.length.gamma import FixedGamma
from localspec.engine.llama import Context, ContextOptions, Model
from localspec.engine.round.acceptance import Accept
from localspec.engine.round.generate import Engine
from localspec.engine.round.generate_settings import GenerateSettings
from localspec.engine.round.sampling import SamplingParams
from tests.support import gguf_models as made
from tests.support import toy

TARGET, DRAFT = toy.TARGET, toy.DRAFT
PROMPTS = (
    "Tell me a story about a cat named Tom.",
    "Tell me a story about a little girl who lost her shoe.",
    "What is 14 + 9?",
    "What is (3 + 5) * 12?",
    "Anna has 12 apples and gives away 5. How many apples are left?",
    "Write a Python function to find the sum of a list.",
    "Show me the Python method `Queue.put` that puts an item into the queue.",
    "Hi! How are you today?",
    "I would like to book a table for two in a cheap restaurant.",
    "What is the capital of France?",
)
AWKWARD = "  two\n\n\nlines\r\n\ttab, I'LL pay 12345.67 €; naïve 日本語 🙂 x²   "


def fields(path: object) -> dict[str, object]:
    wanted = ("general.", "llama.", "tokenizer.")
    found = gguf.GGUFReader(path).fields.items()
    return {key: field.contents() for key, field in found if key.startswith(wanted)}


@pytest.mark.parametrize("path", [TARGET, DRAFT], ids=["target", "draft"])
def test_the_metadata(path: object) -> None:
    found = fields(path)
    tokens = found["tokenizer.ggml.tokens"]
    assert found["general.architecture"] == "llama"
    assert found["general.file_type"] == gguf.LlamaFileType.MOSTLY_Q8_0
    assert found["llama.context_length"] >= 1024
    assert 4096 <= len(tokens) <= 8192
    assert found["tokenizer.ggml.add_bos_token"] is True
    assert tokens[found["tokenizer.ggml.bos_token_id"]] == "<|endoftext|>"
    assert tokens[found["tokenizer.ggml.eos_token_id"]] == "<|im_end|>"
    assert tokens[found["tokenizer.ggml.eot_token_id"]] == "<|im_end|>"
    assert "<|im_start|>" in found["tokenizer.chat_template"]
    assert "<|endoftext|>" not in found["tokenizer.chat_template"]


def test_the_vocabularies_are_one() -> None:
    assert made.read_vocabulary(TARGET) == made.read_vocabulary(DRAFT)


def test_no_merge_reaches_into_a_special_token() -> None:
    assert not any("<|" in merge.replace(" ", "") for merge in made.read_vocabulary(TARGET).merges)


def test_the_sizes() -> None:
    assert TARGET.stat().st_size + DRAFT.stat().st_size < 40_000_000
    with Model.load(TARGET) as target, Model.load(DRAFT) as draft:
        assert 15_000_000 < target.n_params < 30_000_000
        assert 900_000 < draft.n_params < 2_100_000


def test_text_comes_back_from_tokens() -> None:
    with Model.load(TARGET) as model:
        ids = model.tokenize(AWKWARD, add_special=False, parse_special=False)
        assert b"".join(model.piece(token) for token in ids).decode() == AWKWARD
        assert len(model.tokenize("2024", add_special=False, parse_special=False)) == 4
        turn = "<|im_start|>user\nHello<|im_end|>\n"
        specials = model.tokenize(turn, add_special=False, parse_special=True)
        assert specials[0] == 1
        assert model.is_end(specials[-2])


@pytest.mark.slow
def test_the_draft_is_accepted_and_answers_end() -> None:
    cancel, drafted, accepted, ended = Cancel(), 0, 0, 0
    settings = GenerateSettings(
        sampling=SamplingParams(temperature=0.0), accept=Accept.MATCH, n_predict=160
    )
    options = ContextOptions(n_ctx=512, threads=1)
    with Model.load(TARGET) as target, Model.load(DRAFT) as draft:
        drafter = ModelDrafter(Context(draft, options), target.n_vocab)
        engine = Engine(Context(target, options), drafter)
        for text in PROMPTS:
            turn = f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n"
            prompt = target.tokenize(turn, add_special=True, parse_special=True)
            for _ in engine.prefill(prompt, cancel):
                pass
            for done in engine.generate(prompt, settings, FixedGamma(4), cancel):
                drafted, accepted = drafted + done.drafted, accepted + done.accepted
            ended += done.finish == "stop"
        engine.target.close()
        drafter.context.close()
    assert accepted / drafted > 0.5
    assert ended >= len(PROMPTS) // 2
