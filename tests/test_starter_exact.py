"""The starter's greedy text is llama.cpp's own, without drafts and with them, token by token.

The reference is the plain loop over llama.cpp's functions, by the same settings: one thread, flash
attention, the prompt in one batch, then a token at a time, the likeliest each.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from llama_cpp import llama_cpp as lib

from localspec.chat.session.session import Session
from localspec.engine.cancel import Cancel
from localspec.engine.llama import repacking_works
from localspec.loading.load import load_session
from localspec.loading.load_request import LoadRequest

PROMPTS = (
    "hi",
    "who are you?",
    "Correct the spelling: Yesterday I went to the libary to borow a book.",
    "Correct the spelling: We will visit our freind next wensday and bring a choclate cake.",
    "Rewrite in the past tense: She walks to the market and buys some bread.",
    "Rewrite in simpler words: The committee postponed the decision until further notice.",
    "Make this sentence shorter: Due to the fact that it was raining, we stayed at home.",
    "Write a Python function that reverses a string.",
    "Write a Python function that adds up the numbers in a list.",
    "Write a Python function that counts the vowels in a word.",
    "Say this again, word by word: the red kite, the blue kite, the red kite, the green kite.",
    "Put these words in the order of the alphabet: pear, apple, cherry, banana.",
    "Turn this into a list: we need eggs, flour, two lemons and a bottle of milk.",
    "Write one sentence with the word umbrella in it.",
    "Write a short poem about the rain.",
    "Tell me a story about a dog and a boat.",
    "What can you help me with?",
    "Translate into French: Good morning, my friend.",
    "Finish the sentence: When the train arrived at the station,",
    "Explain in one sentence what a loop is in a program.",
)
TOKENS = 16
SYSTEM = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"


class Reference:
    """llama.cpp called directly, without any part of localspec."""

    def __init__(self, path: Path) -> None:
        params = lib.llama_model_default_params()
        params.use_extra_bufts = repacking_works()
        model = lib.llama_model_load_from_file(bytes(path), params)
        assert model
        how = lib.llama_context_default_params()
        how.n_ctx, how.n_batch, how.n_ubatch = 1024, 512, 512
        how.n_threads = how.n_threads_batch = 1
        how.flash_attn_type = 1
        context = lib.llama_init_from_model(model, how)
        assert context
        self.model, self.context = model, context
        self.vocab = lib.llama_model_get_vocab(model)

    def greedy(self, prompt: str) -> str:
        said = f"<|im_start|>system\n{SYSTEM}<|im_end|>\n<|im_start|>user\n{prompt}<|im_end|>\n"
        text = f"{said}<|im_start|>assistant\n".encode()
        room = (lib.llama_token * 512)()
        n = lib.llama_tokenize(self.vocab, text, len(text), room, 512, True, True)
        ids, found = list(room[:n]), b""
        lib.llama_memory_clear(lib.llama_get_memory(self.context), True)
        for _ in range(TOKENS):
            held = (lib.llama_token * len(ids))(*ids)
            assert lib.llama_decode(self.context, lib.llama_batch_get_one(held, len(ids))) == 0
            rows = lib.llama_get_logits_ith(self.context, -1)
            n_vocab = lib.llama_vocab_n_tokens(self.vocab)
            token = int(np.ctypeslib.as_array(rows, (n_vocab,)).argmax())
            if lib.llama_vocab_is_eog(self.vocab, token):
                break
            piece = ctypes.create_string_buffer(64)
            n = lib.llama_token_to_piece(self.vocab, token, piece, 64, 0, False)
            found, ids = found + piece.raw[:n], [token]
        return found.decode("utf-8", "replace")

    def close(self) -> None:
        lib.llama_free(self.context)
        lib.llama_model_free(self.model)


@pytest.fixture(scope="module", params=[10, pytest.param(1, marks=pytest.mark.slow)])
def prompts(request: pytest.FixtureRequest) -> Sequence[str]:
    """Every tenth prompt, or all of them."""
    return PROMPTS[:: request.param]


@pytest.fixture(scope="module")
def expected(starter_file: Path, prompts: Sequence[str]) -> list[str]:
    with closing(Reference(starter_file)) as reference:
        return [reference.greedy(prompt) for prompt in prompts]


@pytest.fixture(
    scope="module", params=["baseline", pytest.param("drafting", marks=pytest.mark.slow)]
)
def session(request: pytest.FixtureRequest, starter_file: Path) -> Iterator[Session]:
    how = {"gamma": 0} if request.param == "baseline" else {"gamma": 4, "exact": True}
    wanted = LoadRequest(
        pair="starter", threads=1, ctx_size=1024, temp=0.0, n_predict=TOKENS, flash_attn="on", **how
    )
    loaded = load_session(wanted, progress=lambda _step, _share: None, cancel=Cancel())
    yield loaded
    loaded.close()


def test_greedy_text_is_llama_cpps_own(
    session: Session, prompts: Sequence[str], expected: list[str]
) -> None:
    found, drafted = [], 0
    for prompt in prompts:
        session.reset()
        for _ in session.turn(prompt, Cancel()):
            pass
        found.append(session.messages[-1].content)
        drafted += session.figures().drafted
    assert found == expected
    assert (drafted > len(prompts)) == (session.settings.gamma != 0)
