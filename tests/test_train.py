"""`localspec train` with torch: heads of random targets, from beginning to end.

Torch is not in the default environment: `tests/train.sh` makes one that has it, where none of
these may be skipped.
"""

from __future__ import annotations

import importlib
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

if os.environ.get("LOCALSPEC_TORCH"):  # set where torch has to be there
    import torch
else:
    torch = pytest.importorskip("torch", reason="torch is not installed: tests/train.sh has it")

from localspec import api, private
from localspec.engine.cancel import Cancel
from localspec.engine.length.cost import Curve
from localspec.engine.llama import Context, ContextOptions, Model, head_of
from localspec.engine.llama.taps import Taps
from localspec.errors import Cancelled, LocalspecError, OutOfMemory
from localspec.pairs.disk import installed, trained_heads
from localspec.pairs.gguf import gguf_writer, head_checks
from localspec.pairs.gguf.header import read_model
from localspec.train import pipeline, training
from localspec.train.estimate import Estimate, TrainingCosts, estimate
from localspec.train.head import head_files
from localspec.train.head.shape import HeadShape, candidates
from localspec.train.target import find
from localspec.train.texts import lessons, prompts
from localspec.train.texts.answers import AnsweredText
from localspec.train.texts.lessons import Lesson, Lessons
from localspec.train.train_request import TrainRequest
from localspec.train.training_folder import TrainingFolder
from localspec.train.training_listener import TrainingListener
from localspec.train.training_result import TrainingResult

from .support.gemma4 import write_gemma4
from .support.gguf_models import write_random_llama, write_random_qwen3
from .support.small_training import shrink

network = importlib.import_module("localspec.train.head.network")
learning = importlib.import_module("localspec.train.head.learning")
optim = importlib.import_module("localspec.train.head.optim")
flop_counter = importlib.import_module("torch.utils.flop_counter")

TARGETS: dict[str, Callable[[Path], Path]] = {
    "llama": write_random_llama,
    "qwen3": write_random_qwen3,
    "gemma4": write_gemma4,
}
TOKENS = 1200


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LOCALSPEC_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("LOCALSPEC_CACHE", str(tmp_path / "cache"))
    return tmp_path


@pytest.fixture
def asked(home: Path) -> Path:
    """A few short prompts: two of them are held out."""
    path = home / "prompts.jsonl"
    lines = (json.dumps({"prompt": f"Say {n} and {n * n}."}) + "\n" for n in range(40))
    path.write_text("".join(lines))
    return path


def request(target: Path, asked: Path, **more: object) -> TrainRequest:
    usual: dict[str, object] = {"pair": str(target), "prompts": (asked,), "tokens": TOKENS}
    usual |= {"passes": 1, "force": True, "threads": 1}
    return TrainRequest(**{**usual, **more})  # type: ignore[arg-type]


def listener(
    cancel: Cancel | None = None, after: Callable[[], None] = lambda: None
) -> TrainingListener:
    """`after` is called after every answer and every step of the training."""

    def progress(words: str, _: float | None) -> None:
        if words.startswith(("Answering: ", "Training: ")):
            after()

    return TrainingListener(lambda _: None, progress, cancel or Cancel())


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    shrink(monkeypatch)


def exact(name: str, array: np.ndarray) -> gguf_writer.PackedTensor:
    """Pack a tensor without rounding it."""
    if array.dtype == np.int64:
        return gguf_writer.packed(name, array)
    floats = np.ascontiguousarray(array, np.float32)
    return gguf_writer.PackedTensor(name, "F32", floats.shape[::-1], floats.tobytes())


@pytest.mark.parametrize("name", TARGETS)
def test_torch_and_llama_cpp_draft_the_same(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first test of all: the same tokens and states give the same drafts, step by step."""
    monkeypatch.setattr(head_files, "packed", exact)
    target = TARGETS[name](tmp_path / "target.gguf")
    found = read_model(target)
    shape = list(candidates(found.header))[1]
    weights, chance = head_files.ModelWeights(found.paths), np.random.default_rng(0)
    drafted = sorted(chance.permutation(shape.vocab)[: shape.drafted].tolist())
    its = head_files.beginning(shape, weights, found.header.architecture, drafted)
    for part in (*shape.matrices, *head_files.NORMS):  # so that every part counts
        its[part] = its[part] + 0.1 * chance.standard_normal(its[part].shape).astype(np.float32)
    head_files.write_head(
        tmp_path / "head.gguf", shape, its, drafted=drafted, target=target, about={}
    )
    texts = [
        AnsweredText(n, tuple(chance.integers(3, 300, 20 + 9 * n).tolist()), 3) for n in range(3)
    ]
    options = ContextOptions(n_ctx=256, threads=1)
    with (
        Model.load(target) as model,
        Context(model, options) as context,
        Model.load(tmp_path / "head.gguf", head=True) as second,
        head_of(second, context, options) as head,
        Taps(model, shape.taps, texts=4, n_ctx=256, n_batch=256, outputs=256, threads=1) as taps,
    ):
        lesson = Lessons(taps, weights).of(texts)
        torches = network.HeadNetwork(shape, its)
        with torch.no_grad():
            rows = torches.unroll(
                torch.from_numpy(lesson.states), torch.from_numpy(lesson.embedded), 4
            )
            scores = [torches.scores(each).numpy() for each in rows]
        for text, sample in enumerate(texts):
            last = len(sample.ids) - 1
            states = head.fused(np.ascontiguousarray(lesson.states[text, :last]))
            head.start(0)
            for row in range(last - 4):
                logits, state = head.read([sample.ids[row + 1]], states[row : row + 1], output=True)
                for step in range(4):
                    mine = scores[step][text, row + step]
                    theirs = logits[np.array(drafted)]
                    assert np.abs(mine - theirs).max() < 5e-3 * np.abs(mine).max()
                    assert mine[theirs.argmax()] > mine.max() - 5e-3 * np.abs(mine).max()
                    if step < 3:
                        token = sample.ids[row + 2 + step]
                        logits, state = head.read([token], state, output=True)
                head.keep(row)
                head.read([sample.ids[row + 1]], states[row : row + 1], output=False)


@pytest.mark.parametrize("name", TARGETS)
def test_a_training_ends_and_its_head_drafts_what_the_baseline_says(
    name: str, home: Path, asked: Path
) -> None:
    target = TARGETS[name](home / "target.gguf")
    started = time.process_time()  # of one thread: other programs have no part in it
    done = pipeline.train(request(target, asked), listener())
    assert time.process_time() - started < 60
    assert isinstance(done, TrainingResult)
    assert done.head == home / "data" / "heads" / "target.head.gguf"
    head_checks.require_head(read_model(done.head), read_model(target).header)
    made = trained_heads.made_for(read_model(done.head).header)
    assert made is not None
    assert made.name == "target.gguf"
    assert not made.private
    assert any("by position" in line for line in done.lines())
    assert not (home / "data" / "train").joinpath(made.hash[:16]).exists()
    texts = []
    for gamma in (0, 4):
        loaded = api.load(
            str(target), ctx_size=512, threads=1, gamma=gamma, temp=0.0, n_predict=40, exact=True
        )
        with loaded as chat:
            rounds = [event.round for event in chat.ask("Say 5 and 25.")]
            texts.append(chat.messages[-1].content)
    assert texts[0] == texts[1]
    assert any(each.drafter == "eagle3" and each.drafted for each in rounds)


def accepted_in(home: Path) -> tuple[float, ...]:
    (log,) = (home / "data" / "train").glob("*/log.jsonl")
    *_, last = log.read_text().splitlines()
    return tuple(json.loads(last)["held_out"])


@contextmanager
def learning_from(
    home: Path, texts: Sequence[AnsweredText]
) -> Iterator[tuple[Lesson, Callable[..., Any]]]:
    """A lesson by a random target, and what makes learners of it."""
    found = read_model(write_random_llama(home / "target.gguf"))
    shape = list(candidates(found.header))[-1]
    weights = head_files.ModelWeights(found.paths)
    drafted = list(range(shape.drafted))
    its = head_files.beginning(shape, weights, "llama", drafted)
    with (
        Model.load(found.paths[0]) as model,
        Taps(model, shape.taps, texts=8, n_ctx=512, n_batch=512, outputs=512, threads=1) as taps,
    ):
        yield Lessons(taps, weights).of(texts), partial(learning.learner, shape, its, drafted, 1)


def test_a_head_learns_what_a_target_repeats(home: Path) -> None:
    """A head that learns texts drafts more and more of them: the loss leads to acceptance."""
    chance = np.random.default_rng(0)
    texts = [AnsweredText(n, tuple(chance.integers(3, 60, 40).tolist()), 2) for n in range(8)]
    with learning_from(home, texts) as (lesson, learner):
        learns = learner(trained=False)
        likeliest = lesson.logits.argmax(-1)
        before = learns.judge([lesson], int(likeliest[0])).shares
        for step in range(80):
            learns.learn(lesson, step / 80, step)
        after = learns.judge([lesson], int(likeliest[0])).shares
    assert after[0] > before[0] + 0.1, (before, after)
    assert after == tuple(sorted(after, reverse=True))


def test_a_step_learns_only_where_the_draft_was_right_until_then(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = True

    def judged(self: object, scores: object, likeliest: Any) -> Any:
        del self, scores
        return torch.full_like(likeliest, right, dtype=torch.bool)

    monkeypatch.setattr(learning.HeadLearner, "_right", judged)
    with learning_from(home, [AnsweredText(0, tuple(range(3, 43)), 2)]) as (lesson, learner):
        learns = learner(trained=False)
        one, two, three = (learns.learn(lesson, done, 0)[0] for done in (0.1, 0.2, 0.4))
        right = False
        never = learns.learn(lesson, 0.4, 0)[0]
    assert [round(each / one) for each in (one, two, three, never)] == [1, 2, 3, 1]


def test_steps_repeat_the_shapes_of_their_products(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torch keeps a compiled product of every shape: 640,000 tokens once filled 5 GB with them."""
    chance, shapes = np.random.default_rng(0), set[tuple[int, ...]]()
    product = network.functional.linear
    monkeypatch.setattr(learning.HeadLearner, "_right", lambda _self, _, ids: ids == ids)  # noqa: PLR0124

    def noted(rows: Any, matrix: Any) -> Any:
        shapes.add((*rows.shape, *matrix.shape))
        return product(rows, matrix)

    monkeypatch.setattr(network.functional, "linear", noted)
    grown = []
    for _ in range(4):
        texts = [AnsweredText(0, tuple(range(3, 3 + n)), 2) for n in chance.integers(82, 96, 5)]
        with learning_from(home, texts) as (lesson, learner):
            learner(trained=False).learn(lesson, 0.9, 0)
        grown.append(len(shapes))
    assert grown[0] == grown[-1], grown


def test_a_head_that_was_trained_before_goes_on_with_a_lower_rate(home: Path) -> None:
    rates = []
    with learning_from(home, [AnsweredText(0, tuple(range(3, 43)), 2)]) as (lesson, learner):
        for trained in (False, True):
            learns = learner(trained=trained)
            learns.learn(lesson, 0.1, 1000)
            rates.append(learns._optimisers[0].param_groups[0]["lr"])
    assert rates[1] < 0.6 * rates[0]


@pytest.fixture
def stopped(home: Path) -> Iterator[Callable[[], training.Training]]:
    """What makes a training without answers, which goes on from a checkpoint if there is one."""
    work = TrainingFolder("f" * 64)
    work.folder.mkdir(parents=True)
    with learning_from(home, [AnsweredText(0, tuple(range(3, 43)), 2)]) as (lesson, learner):
        del lesson
        learns = learner(trained=False)
        lessons_ = cast(Lessons, None)  # no step is made
        yield lambda: training.Training(work, learns, lessons_, [], [], passes=1, common=0)


def test_a_damaged_checkpoint_is_named(stopped: Callable[[], training.Training]) -> None:
    first = stopped()
    first.standing.step = 7
    first.save()
    path = first._work.checkpoint
    whole = path.read_bytes()
    assert stopped().standing.step == 7
    for broken in (b"", whole[:1000], whole[: len(whole) // 2], b"x" * 1000):
        path.write_bytes(broken)
        with pytest.raises(LocalspecError, match=r"the checkpoint .*checkpoint\.pt cannot be read"):
            stopped()


def test_of_heads_that_are_as_good_the_latest_is_kept(
    stopped: Callable[[], training.Training],
) -> None:
    found, written = stopped(), list[int]()
    for step in range(3):
        found._judge(lambda step=step: written.append(step))
    assert written == [0, 1, 2]


def test_saving_takes_a_twentieth_of_the_time_at_most(
    stopped: Callable[[], training.Training], monkeypatch: pytest.MonkeyPatch
) -> None:
    found, now, saved = stopped(), 0.0, list[float]()

    def step() -> None:
        nonlocal now
        now += 1.0
        found.standing.step += 1

    def save() -> None:
        nonlocal now
        now += 16.0  # a head of gigabytes
        saved.append(now)

    found._batches = [()] * 1001
    monkeypatch.setattr(found, "_step", step)
    monkeypatch.setattr(found, "_judge", lambda _: None)
    monkeypatch.setattr(found, "save", save)
    monkeypatch.setattr(training.time, "monotonic", lambda: now)
    found.run(Cancel(), lambda *_: None, lambda: None)
    assert 3 <= len(saved) <= 5  # the last one is the end's
    assert len(saved) * 16 <= now / 20 + 32


def told_of(shape: HeadShape) -> Estimate:
    """What is told of a training that needs no answers."""
    steady = TrainingCosts(
        target=Curve({1: 0.01, 16: 0.01}),
        step_s=0.001,
        read_s=0.002,
        flops=5e10,
        loaded_bytes=2 * 10**8,
        reading_bytes=10**8,
    )
    return estimate(shape, steady, 0, 1, held=1)


def test_the_disk_that_is_told_holds_the_last_checkpoint_and_the_next(home: Path) -> None:
    with learning_from(home, [AnsweredText(0, tuple(range(3, 43)), 2)]) as (lesson, learner):
        learns = learner(trained=False)
        learns.learn(lesson, 0.1, 1000)
        shape = learns.network.shape
        wanted = told_of(shape).disk - 3 * shape.weights
        assert wanted == pytest.approx(2 * len(learns.saved({})), rel=0.1)


def test_an_update_takes_the_operations_that_are_told(home: Path) -> None:
    shape = next(candidates(read_model(write_random_llama(home / "target.gguf")).header))
    with flop_counter.FlopCounterMode(display=False) as counted:
        for size in shape.matrices.values():
            optim.orthogonalised(torch.ones(size))
    assert counted.get_total_flops() == shape.update_work


def test_a_card_without_room_is_left_to_the_target(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (1000, 2000))
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    assert learning.device(1000).type == "cuda"
    assert learning.device(1001).type == "cpu"


def test_what_a_card_learns_needs_no_main_memory(
    home: Path, asked: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = find(str(write_random_llama(home / "target.gguf")), scan=False)
    run = pipeline._TrainingRun(
        request(found[1].paths[0], asked), listener(), found, prompts.gather([asked], ())
    )
    run.work.folder.mkdir(parents=True)
    told = told_of(next(candidates(found[1].header)))
    free, integrated = told.card, 0
    card = lambda _: SimpleNamespace(is_integrated=integrated)  # noqa: E731
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (free, free))
    monkeypatch.setattr(torch.cuda, "get_device_properties", card)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    monkeypatch.setattr(pipeline.machine, "available", lambda: told.more - told.learning)
    run._require_sense(told)
    integrated = 1  # its memory is the main memory
    with pytest.raises(OutOfMemory, match="of memory more than the target"):
        run._require_sense(told)
    integrated = 0
    free -= 1  # then the processor learns
    with pytest.raises(OutOfMemory, match="of memory more than the target"):
        run._require_sense(told)


class Killed(Exception):
    """Stands for the end of a process."""


def test_interrupted_at_ten_random_moments_it_ends_as_an_unbroken_one(
    home: Path, asked: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = write_random_llama(home / "target.gguf")
    found: list[tuple[float, ...]] = []
    real = pipeline._TrainingRun._end

    def end(self: object, samples: list[AnsweredText]) -> TrainingResult:
        found.append(accepted_in(home))
        return real(self, samples)  # type: ignore[arg-type]

    monkeypatch.setattr(pipeline._TrainingRun, "_end", end)
    monkeypatch.setattr(lessons, "ROWS", 160)  # a text a step
    monkeypatch.setattr(training, "_SAVE_S", 0.0)
    pipeline.train(request(target, asked), listener())
    chance, breaks = random.Random(0), 0
    left = [chance.randint(1, 2) for _ in range(10)]

    def after() -> None:
        nonlocal breaks
        if left:
            left[0] -= 1
            if left[0] == 0:
                left.pop(0)
                breaks += 1
                raise Killed

    resume = False
    while True:
        try:
            pipeline.train(request(target, asked, resume=resume), listener(after=after))
            break
        except Killed:
            resume = True
    assert breaks == 10
    unbroken, broken = found
    assert np.abs(np.array(unbroken) - broken).max() <= 0.02


def test_a_killed_process_goes_on(home: Path, asked: Path) -> None:
    """After SIGKILL at random moments the next process goes on, whatever was being written."""
    target = write_random_llama(home / "target.gguf")
    command = [sys.executable, "-m", "tests.support.small_training", "train", str(target)]
    command += ["--prompts", str(asked), "--tokens", str(TOKENS), "--passes", "1", "--force"]
    command += ["-t", "1"]
    chance, resume = random.Random(1), list[str]()

    def begun() -> bool:
        return any((home / "data" / "train").glob("*/begun.json"))

    for _ in range(3):
        running = subprocess.Popen([*command, *resume], stderr=subprocess.PIPE, text=True)
        while running.poll() is None and not begun():
            time.sleep(0.05)
        try:
            _, said = running.communicate(timeout=6 * chance.random())
        except subprocess.TimeoutExpired:
            running.send_signal(signal.SIGKILL)
            running.communicate()
        else:
            assert running.returncode == 0, said
        if not begun():  # it was over, perhaps just before it was killed
            break
        resume = ["--resume"]
    if begun():
        done = subprocess.run(
            [*command, *resume], capture_output=True, text=True, check=False, timeout=300
        )
        assert done.returncode == 0, done.stderr
        assert "by position" in done.stdout
    assert [each.suffix for each in (home / "data" / "heads").iterdir()] == [".gguf"]


def test_ctrl_c_leaves_a_checkpoint(
    home: Path, asked: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lessons, "ROWS", 160)
    target, cancel, steps = write_random_llama(home / "target.gguf"), Cancel(), 0

    def after() -> None:
        nonlocal steps
        steps += any((home / "data" / "train").glob("*/answers.jsonl"))
        if steps > 12:
            cancel.set()

    with pytest.raises(Cancelled):
        pipeline.train(request(target, asked), listener(cancel, after))
    done = pipeline.train(request(target, asked, resume=True), listener())
    assert done.head.exists()


def test_a_full_disk_is_a_sentence_and_costs_nothing_that_was_kept(
    home: Path, asked: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = write_random_llama(home / "target.gguf")
    with monkeypatch.context() as patch:
        patch.setattr(
            "localspec.train.training_folder.shutil.disk_usage",
            lambda _: type("Usage", (), {"free": 1000})(),
        )
        with pytest.raises(LocalspecError, match=r"needs .* of disk, 1 kB are free"):
            pipeline.train(request(target, asked), listener())
    real = private.whole_file

    def full(path: Path) -> Iterator[object]:
        if path.name == "checkpoint.pt":
            raise OSError(28, "No space left on device")
        return real(path)

    with monkeypatch.context() as patch:
        patch.setattr(training.private, "whole_file", full)
        with pytest.raises(OSError, match="No space left"):
            pipeline.train(request(target, asked, anew=True), listener())
    assert pipeline.train(request(target, asked, resume=True), listener()).head.exists()


def test_a_head_no_better_than_the_control_is_not_used(home: Path, asked: Path) -> None:
    """A random model cannot be guessed; the training is kept, so that the head may be, too."""
    target = write_random_llama(home / "target.gguf")
    with pytest.raises(LocalspecError, match="no head can make this target faster"):
        pipeline.train(request(target, asked, force=False), listener())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pipeline._TrainingRun, "_require_sense", lambda *_: None)
        with pytest.raises(LocalspecError, match="no better than the control") as caught:
            pipeline.train(request(target, asked, force=False), listener())
    assert "--resume --force" in caught.value.remedy
    assert not (home / "data" / "heads").exists()
    assert installed.all_pairs() == []
    kept = pipeline.train(request(target, asked, resume=True), listener())
    assert not kept.found.better
    assert kept.head.exists()


def test_a_head_to_begin_with_and_one_s_own_conversations_in_both(
    home: Path, asked: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both files say that the user's own conversations were trained on."""
    target = write_random_llama(home / "target.gguf")
    said = [list(each) for each in prompts.gather([asked], ()).learnt[:12]]
    with monkeypatch.context() as patch:
        patch.setattr(pipeline.token_ids, "conversations", lambda *_: said)
        own = request(target, asked, history=True, out=home / "first.gguf")
        first = pipeline.train(own, listener())
    second = pipeline.train(request(target, asked, init=first.head), listener())
    assert read_model(second.head).header.tensors == read_model(first.head).header.tensors
    for done in (first, second):
        made = trained_heads.made_for(read_model(done.head).header)
        assert made is not None
        assert made.private


def test_the_starter_takes_no_more_than_is_told(
    home: Path, asked: Path, starter_file: Path
) -> None:
    """The most memory and disk of a whole training; its steps are as large as ever."""
    command = [sys.executable, "-m", "tests.support.training_size", str(starter_file), str(asked)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stderr
    took = json.loads(done.stdout)
    told = {word: size(took["told"], word) for word in ("memory", "disk")}
    assert took["memory"] <= told["memory"] <= 3e9, took
    assert took["disk"] <= told["disk"] <= 4e9, took


def size(sentence: str, of: str) -> float:
    """The bytes that a sentence such as "214 MB of disk" names."""
    found = re.search(rf"([\d.]+) ([kMG])B of {of}", sentence)
    assert found, sentence
    return float(found[1]) * {"k": 1e3, "M": 1e6, "G": 1e9}[found[2]]
