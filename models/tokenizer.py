"""Train the byte-level BPE tokenizer of the demo pair, and load it.

The vocabulary is learned from message contents alone, so no merge reaches across a special token.
The pre-tokenizer is the one that llama.cpp knows as `qwen2`: words with the character before them,
single digits, runs of punctuation, line ends, other space. Another one makes a vocabulary of
another kind, for a draft that has not its target's.

    python models/tokenizer.py CORPORA OUT.json --size 4096
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

from corpora import conversations, sources
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

if TYPE_CHECKING:
    from collections.abc import Iterator

PRE_TOKENIZERS = {
    "qwen2": (
        r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"
        r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    ),
    "smollm": (
        r"\p{N}",
        r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)",
    ),
}
"""What `tokenizer.ggml.pre` says, and the expressions by which a text is split, one after another.

`smollm` takes a space alone, not any character, before a word, and line ends with other space.
"""

BOS, TURN_START, TURN_END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
SPECIALS = [BOS, TURN_START, TURN_END]
"""Ids 0, 1 and 2. A document begins with BOS; TURN_END ends a turn, and generation."""

ROLES = ("user", "assistant", "system")

TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
"""The chat template for the GGUF metadata. It writes no BOS: `add_bos_token` is set instead."""

CAP_BYTES = 5_000_000
"""Most bytes taken from one source, so that the two largest do not decide the vocabulary."""


def sample(folder: Path) -> Iterator[str]:
    """Yield message contents for training, at most CAP_BYTES of each source, and the role names."""
    for source in sources(folder):
        left = CAP_BYTES
        for conversation in conversations(folder, source):
            for message in conversation:
                yield message["content"]
                left -= len(message["content"])
            if left < 0:
                break
    for role in ROLES:
        yield f"{role}\n" * 50_000


def empty(kind: str) -> Tokenizer:
    """Make an untrained tokenizer with the pre-tokenizer and decoder in place."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            *(pre_tokenizers.Split(Regex(p), behavior="isolated") for p in PRE_TOKENIZERS[kind]),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def kind_of(tokenizer: Tokenizer) -> str:
    """Name the pre-tokenizer as llama.cpp does."""
    splits = json.loads(tokenizer.to_str())["pre_tokenizer"]["pretokenizers"][:-1]
    patterns = tuple(split["pattern"]["Regex"] for split in splits)
    return next(kind for kind, known in PRE_TOKENIZERS.items() if known == patterns)


def train(folder: Path, size: int, kind: str) -> Tokenizer:
    """Learn `size` ids (specials, 256 bytes, then merges) from the corpora."""
    tokenizer = empty(kind)
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=SPECIALS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(sample(folder), trainer)
    return tokenizer


def main() -> None:
    """Train and save."""
    parser = argparse.ArgumentParser(description="Train the demo pair's tokenizer.")
    parser.add_argument("corpora", type=Path, help="folder with NAME.jsonl.zst")
    parser.add_argument("out", type=Path, help="tokenizer.json to write")
    parser.add_argument("--size", type=int, default=4096, help="ids in all (default 4096)")
    parser.add_argument("--pre", choices=PRE_TOKENIZERS, default="qwen2", help="how text is split")
    args = parser.parse_args()
    train(args.corpora, args.size, args.pre).save(str(args.out))


if __name__ == "__main__":
    main()
