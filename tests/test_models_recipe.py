"""The recipe's parts that would fail silently. They need the dependency group `models`."""

from __future__ import annotations

import json
import random
import re
import sys
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
tokenizers = pytest.importorskip("tokenizers")
pytest.importorskip("zstandard")

MODELS = Path(__file__).parents[1] / "models"
sys.path.append(str(MODELS))

import convert  # noqa: E402
import copying  # noqa: E402
import data  # noqa: E402
import export  # noqa: E402
import generate  # noqa: E402
import heads  # noqa: E402
import model as models  # noqa: E402
import respell  # noqa: E402
import tokenizer as vocabularies  # noqa: E402
import train_heads  # noqa: E402
import zstandard  # noqa: E402

from localspec.engine.llama import Context, ContextOptions, Head, Model  # noqa: E402

TALKS = [
    [
        {"role": "user", "content": f"What is {n} + 1?"},
        {"role": "assistant", "content": f"{n} + 1 = {n + 1}."},
    ]
    for n in range(40)
]


MATERIAL = copying.Material(
    texts=[
        [
            f"The {n}th bird sang all day in the old oak tree.",
            "Then it flew home to its young ones.",
        ]
        for n in range(9)
    ],
    code=[("python", f"def add{n}(first, second):\n    return first + second") for n in range(9)],
    words=["bird", "tree", "home", "old"],
    names=["first", "second", "third"],
)


@pytest.fixture(scope="module")
def tokenizer() -> object:
    return tokenizers.Tokenizer.from_file(str(MODELS / "tokenizer.json"))


@pytest.fixture
def small() -> object:
    torch.manual_seed(0)
    made = models.Llama(models.Shape(4096, 64, 2, 2, 128, 256))
    for parameter in made.parameters():
        parameter.data *= 4
    return made


def stream(tokenizer: object, seed: int = 0) -> data.Stream:
    encoder = data.Encoder(tokenizer)
    known = {"talks": data.encode_source(encoder, TALKS)}
    return data.Stream(known, {"talks": 1.0}, encoder, seed=seed)


def test_rotary_rows_go_and_come_back() -> None:
    matrix = np.random.default_rng(0).normal(size=(64, 8))
    assert (export.separate(export.interleave(matrix, 2), 2) == matrix).all()
    assert not (export.interleave(matrix, 2) == matrix).all()


def test_llama_cpp_computes_what_torch_computes(
    small: object, tokenizer: object, tmp_path: Path
) -> None:
    path = tmp_path / "model.gguf"
    export.save(small, tokenizer, path, kind="f32", name="test")
    ids = list(range(300, 340))
    with torch.no_grad():
        wanted = small(torch.tensor([ids]))[0].numpy()
    with Model.load(path) as loaded, Context(loaded, ContextOptions(n_ctx=128, threads=1)) as there:
        found = np.array(there.decode(ids, len(ids)))
    assert np.abs(found - wanted).max() < 0.1  # the cache holds F16; the logits reach 6
    again, tokens, _ = export.load(path)
    assert again.shape == small.shape
    assert tokens[1] == "<|im_start|>"


def test_generation_decodes_what_one_pass_computes(small: object) -> None:
    prompts = [[0, 5, 6, 7, 8], [0, 9]]
    with torch.no_grad():
        answers = generate.answer(small, prompts, [0, 0], -1, torch.device("cpu"))
        for prompt, (said, ids, p) in zip(prompts, answers, strict=True):
            whole = torch.tensor([prompt + said])
            rows = small(whole)[0, len(prompt) - 1 : -1].softmax(-1)
            best = rows.max(-1)
            count = len(rows)
            assert best.indices.tolist() == ids[:count, 0].tolist()
            assert np.abs(best.values.numpy() - p[:count, 0]).max() < 1e-3  # kept in F16


def test_a_stream_goes_on_where_it_was(tokenizer: object) -> None:
    first, second = stream(tokenizer), stream(tokenizer, seed=7)
    first.batch(2, 64)
    second.restore(first.state())
    for one, other in zip(first.batch(3, 32), second.batch(3, 32), strict=True):
        assert (one == other).all()


def test_rows_follow_each_other_and_targets_are_shifted(tokenizer: object) -> None:
    batch = stream(tokenizer).batch(2, 32)
    assert (batch.inputs[0, 1:] == batch.targets[0, :-1]).all()
    assert batch.inputs[1, 0] == batch.targets[0, -1]
    assert set(np.unique(batch.weights)) == {np.float32(0.2), np.float32(1.0)}


def test_turn_by_turn_is_the_same_as_the_whole_text(tokenizer: object) -> None:
    ids, marks = data.Encoder(tokenizer).turns(TALKS[7])
    text = "".join(f"<|im_start|>{m['role']}\n{m['content']}<|im_end|>\n" for m in TALKS[7])
    assert ids == tokenizer.encode(text).ids
    said = [token for token, mark in zip(ids, marks, strict=True) if mark]
    assert tokenizer.decode(said) == "7 + 1 = 8."


def test_embeddings_are_carried_over_by_their_bytes(tokenizer: object) -> None:
    old = torch.arange(8.0)[:, None].repeat(1, 2)
    tokens = ["<|end|>", "a", "b", "c", "ab", "Ġ", "t", "Ġt"]
    rows = export.transplant(old, tokens, ["a b", "Ġ t"], tokenizer, {"<|im_end|>": ["<|end|>"]})
    ids = tokenizer.get_vocab()
    assert rows[ids["a"], 0] == 1
    assert rows[ids["<|im_end|>"], 0] == 0
    assert rows[ids["Ġt"], 0] == 7
    assert rows[ids["ac"], 0] == pytest.approx(2)


SAMPLE = (
    "He's  said \"(yes)\"; they'LL pay 1,234.50 in total.\n\n"
    "The   bird\tsang -- caf\u00e9, \u65e5\u672c\n"
    "```python\ndef total(prices):\n    return  sum(prices)  # 12 of 34\n\n\n```\n "
)


@pytest.fixture(scope="module", params=vocabularies.PRE_TOKENIZERS)
def other(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> object:
    """A small vocabulary, of each kind."""
    folder = tmp_path_factory.mktemp("corpus")
    talks = "".join(
        json.dumps({"messages": [{"role": "user", "content": SAMPLE}, *talk]}) + "\n"
        for talk in TALKS
    )
    (folder / "talks.jsonl.zst").write_bytes(zstandard.compress(talks.encode()))
    return vocabularies.train(folder, 320, request.param)


def test_llama_cpp_cuts_text_as_the_tokenizer_does(other: object, tmp_path: Path) -> None:
    made = models.Llama(models.Shape(320, 32, 1, 2, 64, 64))
    export.save(made, other, tmp_path / "other.gguf", kind="f32", name="test")
    with Model.load(tmp_path / "other.gguf") as loaded:
        for text in (SAMPLE, *(SAMPLE[i:] for i in range(1, 40)), " a", "\n\n b", "1 2"):
            there = loaded.tokenize(text, add_special=False, parse_special=False)
            assert there == other.encode(text, add_special_tokens=False).ids


def test_a_model_is_adopted_by_another_vocabulary(
    small: object, other: object, tokenizer: object, tmp_path: Path
) -> None:
    export.save(small, tokenizer, tmp_path / "small.gguf", kind="f32", name="test")
    adopted = export.adopt(tmp_path / "small.gguf", other, {})
    assert adopted.shape.vocab == 320
    known, rows = tokenizer.get_vocab(), small.token_embd.weight
    for token, number in other.get_vocab().items():
        if token in known:
            assert (adopted.token_embd.weight[number] == rows[known[token]]).all()
    assert (adopted.blk[1].attn_q.weight - small.blk[1].attn_q.weight).abs().max() < 1e-6
    same = export.adopt(tmp_path / "small.gguf", tokenizer, {})
    assert (same.token_embd.weight == rows).all()


def answered(tokenizer: object, talks: list) -> generate.Answers:
    """Answers as if a target had said what the talks say, each token with 0.6, one other 0.3."""
    encoder = data.Encoder(tokenizer)
    parts = [([encoder.bos, *ids], [False, *marks]) for ids, marks in map(encoder.turns, talks)]
    ids = np.concatenate([ids for ids, _ in parts]).astype(np.uint16)
    marks = np.concatenate([marks for _, marks in parts])
    count, said = int(marks.sum()), ids[marks]
    top_ids = np.tile(np.arange(generate.TOP, dtype=np.uint16) + 3, (count, 1))
    top_ids[:, 0], top_ids[:, 1] = said, tokenizer.token_to_id("\u0120the")
    top_p = np.zeros((count, generate.TOP), dtype=np.float16)
    top_p[:, :2] = 0.6, 0.3
    starts = np.cumsum([0, *(len(ids) for ids, _ in parts[:-1])])
    return generate.Answers(ids, starts, marks, top_ids, top_p)


def test_answers_spelled_anew_say_the_same(other: object, tokenizer: object) -> None:
    talks = [*TALKS[:3], [TALKS[0][0], {"role": "assistant", "content": SAMPLE.strip()}]]
    before = answered(tokenizer, talks)
    after = respell.Respeller(tokenizer, other).answers(before)
    texts = [
        [
            vocabulary.decode(part.tolist(), skip_special_tokens=False)
            for part in np.split(answers.ids, answers.starts[1:])
        ]
        for vocabulary, answers in ((tokenizer, before), (other, after))
    ]
    assert texts[0] == texts[1]
    said = other.decode(after.ids[after.answered].tolist(), skip_special_tokens=False)
    assert said.count("<|im_end|>") == len(talks)
    assert said.endswith(SAMPLE.strip() + "<|im_end|>")
    # Only what was said is likeliest, and within a token of the target's nothing else is possible.
    assert (after.top_ids[:, 0] == after.ids[after.answered]).all()
    the = other.encode(" the").ids[0]
    first = {round(float(p), 2) for p in after.top_p[:, 0]}
    assert first == {0.6, 1.0} | ({0.9} if the in after.ids[after.answered] else set())
    assert set(after.top_ids[after.top_p[:, 0] < 0.61, 1]) == {the}
    assert all(len(set(row)) == generate.TOP for row in after.top_ids.tolist())


def test_answers_spelled_as_they_are_stay(tokenizer: object) -> None:
    before = answered(tokenizer, TALKS[:3])
    after = respell.Respeller(tokenizer, tokenizer).answers(before)
    for name in ("ids", "starts", "answered"):
        assert (vars(before)[name] == vars(after)[name]).all()
    assert (before.top_ids[:, :2] == after.top_ids[:, :2]).all()
    assert (before.top_p[:, :2] == after.top_p[:, :2]).all()


def test_a_broken_character_is_left_out(tokenizer: object) -> None:
    before = answered(tokenizer, TALKS[:2])
    before.ids[before.starts[1] + 4] = tokenizer.token_to_id("\u00e2")  # the first byte of three
    after = respell.Respeller(tokenizer, tokenizer).answers(before)
    assert after.starts.tolist() == [0]
    assert (after.ids == before.ids[: before.starts[1]]).all()
    assert len(after.top_p) == after.answered.sum()


@pytest.mark.parametrize("task", copying.TASKS)
def test_copying_tasks_have_their_answers_in_the_question(task: str) -> None:
    rng = random.Random(1)
    for _ in range(40):
        asked, answered = copying.TASKS[task](rng, MATERIAL)
        question, answer = asked["content"], answered["content"]
        if task in {"repeat", "quote", "jumble"}:
            assert answer in question
            continue
        known = set(re.findall(r"\w+", question))
        words = re.findall(r"\w+", answer)
        assert sum(word in known for word in words) >= len(words) - 1, (question, answer)


def test_a_copying_task_is_not_cut_from_its_question(tokenizer: object) -> None:
    encoder = data.Encoder(tokenizer)
    rng = random.Random(1)
    talks = [copying.repeat(rng, MATERIAL) for _ in range(20)]
    known = {"copy_repeat": data.encode_source(encoder, talks)}
    made = data.Stream(known, {"copy_repeat": 1.0}, encoder, seed=0)
    for _ in range(20):
        row, marks = made.row(40)
        assert row[0] in {encoder.bos, encoder.open["user"][0]}
        assert not marks[0]


def test_a_blend_lies_between_its_models(small: object) -> None:
    other = models.Llama(small.shape)
    wanted = 0.75 * small.token_embd.weight + 0.25 * other.token_embd.weight
    convert.blend(small, other, 0.25)
    assert torch.allclose(small.token_embd.weight, wanted, atol=1e-6)


@pytest.fixture
def deep(tokenizer: object, tmp_path: Path) -> Path:
    """A target with layers enough for a head, as a file."""
    torch.manual_seed(0)
    made = models.Llama(models.Shape(4096, 64, 8, 2, 128, 512))
    for parameter in made.parameters():
        parameter.data *= 4
    export.save(made, tokenizer, tmp_path / "deep.gguf", kind="q8_0", name="deep")
    return tmp_path / "deep.gguf"


@pytest.mark.parametrize("kind", heads.KINDS)
def test_a_head_drafts_in_llama_cpp_what_it_drafts_in_torch(
    kind: str, deep: Path, tokenizer: object, tmp_path: Path
) -> None:
    target, ids, begun = export.load(deep)[0], list(range(300, 330)), 25
    head, path = heads.KINDS[kind](target), tmp_path / "head.gguf"
    with torch.no_grad():
        states = heads.states_of(target, torch.tensor([ids]))
        features = head.features([state[:, :-1] for state in states])
        embedded = target.token_embd(torch.tensor([ids[1:]]))
        steps = [target.logits(out)[0].numpy() for out in heads.unroll(head, embedded, features, 3)]
    if kind == "eagle3":
        heads.save_eagle3(head, tokenizer, path)
    else:
        heads.save_mtp(head, deep, tokenizer, path)
    options = ContextOptions(n_ctx=128, threads=1)
    with Model.load(deep if kind == "eagle3" else path, mtp=True) as model:
        own = Model.load(path, head=True) if kind == "eagle3" else model
        with Context(model, options) as context, Head(own, context, options) as there:
            context.show([there])
            context.decode(ids, 1)
            given = there.fused(np.concatenate(there.shown(len(ids)), axis=1))
            row, state = there.read(ids[1 : begun + 1], given[:begun], output=True)
            found = [row]
            for token in ids[begun + 1 : begun + 3]:
                row, state = there.read([token], state, output=True)
                found.append(row)
        if own is not model:
            own.close()

    def apart(one: np.ndarray, other: np.ndarray) -> float:
        return float(np.linalg.norm(one - other) / np.linalg.norm(other))

    for step, row in enumerate(found):  # weights and activations are rounded
        at = begun - 1 + step
        assert apart(row, steps[step][at]) < 0.15
        assert apart(row, steps[step][at - 1]) > 0.5


def test_heads_learn_and_go_on_where_they_were(
    deep: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "corpora"
    folder.mkdir()
    lines = "".join(json.dumps({"messages": talk}) + "\n" for talk in TALKS)
    (folder / "talks.jsonl.zst").write_bytes(zstandard.compress(lines.encode()))
    (tmp_path / "mixture.toml").write_text("[mixture]\ntalks = 1.0\n")
    ids = np.tile(np.arange(300, 340), 40).astype(np.uint16)
    told = generate.Answers(
        ids,
        np.arange(0, 800, 40),
        np.arange(len(ids)) % 2 == 0,
        np.zeros((len(ids) // 2, 2), np.uint16),
        np.zeros((len(ids) // 2, 2), np.float16),
    )
    told.save(tmp_path / "answers.npz")
    monkeypatch.setattr(
        sys,
        "argv",
        [
            *("train_heads", str(deep), str(folder), str(tmp_path / "work")),
            *(str(tmp_path / "answers.npz"), "--minutes", "60", "--rows", "2"),
            *("--config", str(tmp_path / "mixture.toml")),
        ],
    )
    runs: list[train_heads.Run] = []

    def not_long(run: train_heads.Run) -> None:
        runs.append(run)

    monkeypatch.setattr(train_heads.Run, "train", not_long)
    monkeypatch.setattr(data, "GENERATED", ())
    train_heads.main()
    run = runs[0]
    first = [run.advance() for _ in range(12)]
    for name in ("eagle3", "mtp"):
        assert first[-1][name] < first[0][name]
        assert (tmp_path / "work" / f"{name}-Q8_0.gguf").exists()
    run.save()
    train_heads.main()
    assert runs[1].step == run.step
    again = (run.texts.batch(), runs[1].texts.batch())
    assert all((one == other).all() for one, other in zip(*again, strict=True))
