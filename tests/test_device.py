"""On a real GPU backend: a card's, or llama.cpp's Vulkan over Mesa's software driver.

`tests/device.sh` builds what these tests need and runs them; everywhere else they are skipped. Mesa
22.3 crashes, in one of its threads, in passes over 4 to 8 tokens. With it no test makes a pass of
that length, and drafts that would are left out (heads in separate files, cross-vocabulary drafts).
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from statistics import median
from time import perf_counter

import numpy as np
import pytest

from localspec.chat.events import RoundText, TurnEnd
from localspec.engine.cancel import Cancel
from localspec.engine.length.profile import measure
from localspec.engine.llama import Context, ContextOptions, Model, backends, devices
from localspec.engine.llama.checkpoint import Rollback
from localspec.engine.llama.log import start_backend
from localspec.engine.record.stats import DeviceMemory, FinishReason
from localspec.loading import planning
from localspec.loading.load import check, load_session
from localspec.loading.load_request import LoadRequest
from localspec.loading.planning import load_plan
from localspec.pairs.memory.free import DEVICE_RESERVE
from tests.fakes import tokens_of
from tests.support import toy
from tests.support.command import localspec

from .support.any_model import write_any
from .support.buffers import allocated, compared
from .support.gemma4 import write_assistant, write_gemma4
from .support.gguf_models import (
    ARCHITECTURES,
    GENERATORS,
    ROUNDED,
    Sizes,
    read_vocabulary,
    write_llama,
    write_renumbered,
)
from .support.heads import write_dflash
from .support.terminal import Terminal

pytestmark = [
    pytest.mark.device,
    pytest.mark.skipif("not devices()", reason="this build sees no accelerator"),
]


@cache
def device() -> DeviceMemory:
    """The first accelerator."""
    return devices()[0]


def software() -> bool:
    return "llvmpipe" in device().name


def crashing() -> bool:
    """Debian 12's driver, told by what it was built with."""
    return "llvmpipe (LLVM 15" in device().name


def lengths() -> tuple[int, ...]:
    """Of passes."""
    return (1, 2, 3, 9, 16, 33) if crashing() else (1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 33)


LIMITS = ("GGML_VK_FORCE_MAX_BUFFER_SIZE", "GGML_VK_SUBALLOCATION_BLOCK_SIZE")  # bytes
CACHE = ("--cache-type-k", "q8_0", "--cache-type-v", "q8_0")
KEPT = ("LLAMA_CPP_LIB_PATH", "GGML_VK_VISIBLE_DEVICES", "LD_LIBRARY_PATH", "PATH")
CLOSE = 0.1  # between the two best logits, where the device may choose the other one
OPTIONS = ContextOptions(n_ctx=512, threads=1, flash_attention=False)


def asked(**other: object) -> LoadRequest:
    """The toy on the device, without a draft."""
    request = LoadRequest(
        pair="toy", device=(device().label,), gamma=2 if crashing() else 4, temp=0, n_predict=40,
        ctx_size=512, threads=1, flash_attn="off", draft="none",
    )  # fmt: skip
    return replace(request, **other)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def text(target_model: Model) -> list[int]:
    """A story as the toy target tells it, as tokens."""
    story = "Once upon a time, there was a little girl named Lily. She loved to play outside. " * 6
    return target_model.tokenize(story, add_special=True, parse_special=False)


@pytest.fixture(scope="module")
def on_device(toy_target: Path) -> Iterator[Model]:
    with Model.load(toy_target, devices=(device().label,)) as model:
        yield model


def worst_difference(here: Model, there: Model, tokens: list[int]) -> float:
    """The largest difference of two logits, both sides reading `tokens` in passes of `lengths()`.

    The best token is the same, but where the two best are closer than `CLOSE`.
    """
    worst = 0.0
    with Context(here, OPTIONS) as cpu, Context(there, OPTIONS) as device:
        at = 0
        while at + sum(lengths()) <= len(tokens):
            for length in lengths():
                some = tokens[at : at + length]
                ours, theirs = cpu.decode(some, length).copy(), device.decode(some, length)
                worst = max(worst, float(np.abs(ours - theirs).max()))
                for row, other in zip(ours, theirs, strict=True):
                    second, best = np.partition(row, -2)[-2:]
                    assert np.argmax(row) == np.argmax(other) or best - second < CLOSE
                at += length
    return worst


def test_the_device_computes_what_the_processor_does(
    target_model: Model, on_device: Model, text: list[int]
) -> None:
    assert worst_difference(target_model, on_device, text) < 0.5


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_so_it_does_with_every_sort_of_memory(architecture: str, tmp_path: Path) -> None:
    """CPUs and cards round what they multiply with Q8_0 to 8 bits; the software driver does not.

    With it a random mixture sometimes chooses other experts for that reason alone, and logits
    differ by 2.2: so the reference on the CPU gets the same weights in F32.
    """
    path = reference = GENERATORS[architecture](tmp_path / "model.gguf")
    if software():
        reference = GENERATORS[architecture](tmp_path / "reference.gguf", type=ROUNDED)
    tokens = list(range(300, 300 + 2 * sum(lengths())))
    with (
        Model.load(reference, devices=()) as here,
        Model.load(path, devices=(device().label,)) as there,
    ):
        assert worst_difference(here, there, tokens) < 0.5


@dataclass
class GoneBack:
    """Logits after `kept` of nine drafted tokens: after a rollback, without one, and read anew.

    A context that never saw the rejected tokens computed the kept ones in a pass of another size.
    A card rounds that differently, but by far less than the rejected tokens would show.
    """

    again: np.ndarray
    left_behind: np.ndarray
    anew: np.ndarray

    def worst(self, other: np.ndarray) -> float:
        return float(np.abs(self.anew - other).max())


def gone_back(context: Context, text: list[int], kept: int) -> GoneBack:
    """Draft nine tokens after twenty, of which `kept` are right; then read nine right ones."""
    there = 20 + kept
    drafted, right = [*text[20:there], *text[: 9 - kept]], text[there : there + 9]

    def begun() -> None:
        context.clear()
        context.decode(text[:20], 1)
        context.mark(9)
        context.decode(drafted, 9)

    begun()
    context.truncate(there)
    again = context.decode(right, 9).copy()
    begun()
    left_behind = context.decode(right, 9).copy()
    context.clear()
    # A driver computes passes of other sizes in other ways, with logits 0.04 apart. After a return
    # to a checkpoint the kept tokens are read again in one pass, so here they are read apart too.
    apart = 20 if context.rollback is Rollback.CHECKPOINT else there
    for part in filter(None, (text[:apart], text[apart:there])):
        context.decode(part, 1)
    return GoneBack(again, left_behind, context.decode(right, 9).copy())


@pytest.mark.parametrize("kept", range(9))
def test_what_was_rejected_leaves_nothing_behind(
    on_device: Model, text: list[int], kept: int
) -> None:
    with Context(on_device, OPTIONS) as context:
        found = gone_back(context, text, kept)
    assert found.worst(found.again) < (0.001 if software() else 0.3)
    assert found.worst(found.left_behind) > 3.0


@pytest.mark.parametrize("kept", [1, 4, 8])
@pytest.mark.parametrize(
    ("architecture", "way", "snapshots"),
    [
        ("gemma3", Rollback.REMOVAL, 8),  # windows of 32 tokens
        ("mamba", Rollback.CHECKPOINT, 8),
        ("lfm2", Rollback.SNAPSHOTS, 8),
        ("lfm2", Rollback.CHECKPOINT, 0),
        ("qwen35", Rollback.SNAPSHOTS, 8),
        ("qwen35", Rollback.CHECKPOINT, 0),
    ],
)
def test_nor_does_it_in_other_sorts_of_memory(
    architecture: str, way: Rollback, snapshots: int, kept: int, tmp_path: Path
) -> None:
    if crashing() and way is Rollback.CHECKPOINT and kept > 3:
        pytest.skip("llvmpipe crashes")  # what stays is read again
    path = GENERATORS[architecture](tmp_path / "model.gguf")
    options = replace(OPTIONS, snapshots=snapshots)
    with (
        Model.load(path, devices=(device().label,)) as model,
        Context(model, options) as context,
    ):
        assert context.rollback is way
        found = gone_back(context, [*range(300, 360)], kept)
    assert found.worst(found.again) < (0.001 if software() else 0.3)
    assert found.worst(found.left_behind) > 1.0


@dataclass
class Answer:
    """The tokens of an answer and those before it; how many were drafted, and how many right.

    Attributes:
        late: the share of its time that no figure covered: the device's work left when a round
            was over.
    """

    prompt: list[int]
    tokens: list[int]
    drafted: int
    accepted: int
    late: float


def answer(request: LoadRequest) -> Answer:
    session = load_session(request, progress=lambda *_: None, cancel=Cancel())
    rounds, late = [], 0.0
    try:
        for event in session.turn("Tell me a story about a dog and a cat.", Cancel()):
            if isinstance(event, RoundText):
                rounds.append(event.round)
                over = perf_counter()
                for context in (session.pair.target, *session.pair.drafts.values()):
                    context.wait()
                late += perf_counter() - over
        held = list(session.pair.target.tokens)
    finally:
        session.close()
    tokens = tokens_of(rounds)
    begins = next(at for at in range(len(held)) if held[at:] == tokens[: len(held) - at])
    drafted, accepted = (sum(getattr(one, of) for one in rounds) for of in ("drafted", "accepted"))
    return Answer(
        held[:begins], tokens, drafted, accepted, late / sum(one.total_s for one in rounds)
    )


def agree(model: Model, one: Answer, other: Answer) -> bool:
    """Whether the answers are the same, or part where two tokens are within `CLOSE`."""
    assert one.prompt == other.prompt
    apart = (
        at for at, pair in enumerate(zip(one.tokens, other.tokens, strict=True)) if len({*pair}) > 1
    )
    at = next(apart, None)
    if at is None:
        return True
    with Context(model, OPTIONS) as context:
        row = context.decode(one.prompt + one.tokens[:at], 1)[0]
    return bool(abs(row[one.tokens[at]] - row[other.tokens[at]]) < CLOSE)


@pytest.fixture(scope="module")
def baseline() -> Answer:
    """The answer without drafts, on the device."""
    return answer(asked(gamma=0))


def test_the_text_is_the_processor_s(target_model: Model, baseline: Answer) -> None:
    assert agree(target_model, baseline, answer(asked(gamma=0, device=())))


@pytest.mark.parametrize(
    "name", ["draft on the processor", "both on the device", "draft on the device", "split target"]
)
def test_a_draft_leaves_the_text_what_it_is(
    target_model: Model, baseline: Answer, name: str, toy_draft: Path
) -> None:
    here: dict[str, dict[str, object]] = {
        "draft on the processor": {"draft_device": ()},
        "draft on the device": {"device": (), "draft_device": (device().label,)},
        "split target": {"n_gpu_layers": 2},
    }
    found = answer(asked(draft=str(toy_draft), **here.get(name, {})))
    assert agree(target_model, found, baseline)
    assert found.accepted > 0
    assert found.late < 0.02


@pytest.mark.parametrize("there", [True, False])
def test_so_does_one_with_other_tokens(
    target_model: Model, baseline: Answer, tmp_path: Path, there: bool
) -> None:
    if crashing():
        pytest.skip("llvmpipe crashes")
    draft = str(write_renumbered(tmp_path / "draft.gguf"))
    found = answer(asked(draft=draft, **({} if there else {"draft_device": ()})))
    assert agree(target_model, found, baseline)
    assert found.accepted > 0
    assert found.late < 0.02


def test_so_does_lookup(target_model: Model, baseline: Answer) -> None:
    assert agree(target_model, answer(asked(draft="lookup")), baseline)


def test_so_does_the_head_inside_the_target(target_model: Model, toy_target: Path) -> None:
    pair = str(toy.mtp())
    found = answer(asked(pair=pair, draft="mtp"))
    assert agree(target_model, found, answer(asked(pair=pair, gamma=0)))
    assert found.accepted > 0
    assert found.late < 0.02


@pytest.fixture(params=["eagle3", "dflash"])
def head(request: pytest.FixtureRequest, toy_target: Path, tmp_path: Path) -> Path:
    """The toy's EAGLE-3 head, and a DFlash head with random weights, which is seldom right."""
    if request.param == "dflash":
        return write_dflash(tmp_path / "dflash.gguf")
    return toy.EAGLE3


@pytest.mark.parametrize("there", [True, False])
def test_so_does_a_head_of_its_own(
    target_model: Model, baseline: Answer, head: Path, there: bool
) -> None:
    if crashing():
        pytest.skip("llvmpipe crashes")
    found = answer(asked(draft=str(head), **({} if there else {"draft_device": ()})))
    assert agree(target_model, found, baseline)
    assert found.drafted > 20
    assert found.accepted > 0 or "dflash" in head.name
    assert found.late < 0.02


@pytest.mark.parametrize("there", [True, False])
def test_so_does_a_head_that_reads_the_target_s_cells(there: bool, tmp_path: Path) -> None:
    """Gemma 4's assistant, with random weights; its layers slide over the device's cells."""
    if crashing():
        pytest.skip("llvmpipe crashes")
    pair, head = write_gemma4(tmp_path / "target.gguf"), write_assistant(tmp_path / "head.gguf")
    how = asked(pair=str(pair), draft=str(head), **({} if there else {"draft_device": ()}))
    with Model.load(pair, devices=()) as model:
        found = answer(how)
        assert agree(model, found, answer(replace(how, gamma=0)))
    assert found.drafted > 20
    assert found.late < 0.02


def test_the_plan_is_what_the_device_is_asked_for() -> None:
    """Within 5 % or 32 MB, by llama.cpp's own account of its buffers."""
    request = asked(ctx_size=4096)
    planned = load_plan(check(request)).memory.total
    session = load_session(request, progress=lambda *_: None, cancel=Cancel())
    try:
        memory = session.memory()
        taken = memory.target_weights + memory.target_cache + memory.buffers
    finally:
        session.close()
    assert abs(planned - taken) < max(0.05 * taken, 32e6)


LAYERS, EXPERTS = 8, 64  # experts enough to be most of the bytes
FEW = tuple((token, 100.0) for token in range(300, 308))  # of so few tokens, pairs come again
MIXTURES = ("qwen3moe", "gpt-oss", "lfm2moe", "gemma4")
PREDICTING = ("qwen35moe", "glm4moe")  # their last layer drafts (MTP)


@dataclass(frozen=True)
class Mixture:
    """A mixture with random weights, of few experts.

    The software driver multiplies with several tokens in F16. Among many experts two are more often
    so close that it then chooses the other one, and writes another text.

    Attributes:
        large: a file of the same with many experts.
        model: the mixture on the processor.
        alone: what it says there.
    """

    path: Path
    large: Path
    model: Model
    alone: Answer


def mixture_of(folder: Path, architecture: str, nextn: int = 0) -> Iterator[Mixture]:
    path, large = folder / "few.gguf", folder / "large.gguf"
    for file, experts in ((path, 4), (large, EXPERTS)):
        write_any(file, architecture, layers=LAYERS - nextn, nextn=nextn, experts=experts)
    inside = "mtp" if nextn else "none"
    with Model.load(path, devices=(), mtp=bool(nextn)) as model:
        yield Mixture(path, large, model, answer(of(path, device=(), gamma=0, draft=inside)))


def of(path: Path, **other: object) -> LoadRequest:
    """A mixture on the device, without a draft; it writes eight tokens, as lookup then drafts."""
    return asked(pair=str(path), scan=False, logit_bias=FEW, n_predict=30, **other)


@pytest.fixture(scope="module", params=MIXTURES)
def mixture(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Mixture]:
    yield from mixture_of(tmp_path_factory.mktemp("mixture"), request.param)


@pytest.fixture(scope="module", params=PREDICTING)
def predicting(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Mixture]:
    yield from mixture_of(tmp_path_factory.mktemp("mixture"), request.param, nextn=1)


placed = pytest.mark.parametrize("moved", [0, LAYERS // 2, LAYERS])
"""The number of layers whose experts are on the processor."""


def lies_as_planned(request: LoadRequest) -> None:
    """Weights and caches to the byte, as far as the log says; all together within 5 % or 32 MB."""
    planned, taken = compared(request, device().label)
    assert taken.weights == pytest.approx(planned.weights, rel=0.01, abs=10_000)
    assert taken.cache == pytest.approx(planned.cache, rel=0.01, abs=10_000)
    assert abs(planned.total - taken.total) < max(0.05 * taken.total, 32e6)


@placed
@pytest.mark.parametrize("flash", ["on", "off"])
def test_a_mixture_lies_where_the_plan_says(mixture: Mixture, moved: int, flash: str) -> None:
    lies_as_planned(of(mixture.large, ctx_size=4096, flash_attn=flash, n_cpu_moe=moved))


@placed
def test_so_does_the_head_inside_it(predicting: Mixture, moved: int) -> None:
    """Whatever is said of drafts."""
    lies_as_planned(of(predicting.large, draft="mtp", draft_device=(), n_cpu_moe=moved))


@placed
def test_a_mixture_says_the_same_wherever_its_experts_are(mixture: Mixture, moved: int) -> None:
    found = answer(of(mixture.path, n_cpu_moe=moved, gamma=0))
    assert agree(mixture.model, found, mixture.alone)


@placed
@pytest.mark.parametrize("draft", ["lookup", "model"])
def test_drafts_leave_a_mixture_s_text_what_it_is(
    mixture: Mixture, moved: int, draft: str, tmp_path: Path
) -> None:
    """The draft model is the same mixture, whole on the device."""
    copy = tmp_path / "draft.gguf"
    copy.hardlink_to(mixture.path)
    named = draft if draft == "lookup" else str(copy)
    found = answer(of(mixture.path, n_cpu_moe=moved, draft=named, draft_anyway=True))
    assert agree(mixture.model, found, mixture.alone)
    assert found.accepted > (1 if draft == "lookup" else 12)


@placed
@pytest.mark.parametrize("kind", ["f16", "q8_0"])
def test_so_do_they_where_experts_have_another_type(moved: int, kind: str, tmp_path: Path) -> None:
    """Next to the same placement, as the processor rounds what it multiplies with Q8_0."""
    path = tmp_path / "it.gguf"
    write_any(path, "qwen3moe", layers=LAYERS, kind=kind)
    lies_as_planned(of(path, n_cpu_moe=moved))
    found = answer(of(path, n_cpu_moe=moved, draft="lookup"))
    with Model.load(path, devices=()) as model:
        assert agree(model, found, answer(of(path, n_cpu_moe=moved, gamma=0)))
    assert found.accepted > 1


@placed
def test_nor_does_the_head_inside_a_mixture_change_it(predicting: Mixture, moved: int) -> None:
    found = answer(of(predicting.path, n_cpu_moe=moved, draft="mtp"))
    assert agree(predicting.model, found, predicting.alone)
    assert found.drafted > 20


def test_a_mixture_loads_where_half_of_it_has_room(
    mixture: Mixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No option places it; the experts of some layers stay in main memory, and a notice says so."""
    request = of(mixture.large)
    whole = load_plan(check(request)).memory
    room = whole.device // 2
    small = replace(device(), free=DEVICE_RESERVE + room)
    monkeypatch.setattr(planning, "devices", lambda: [small])
    made = load_plan(check(request))
    moved = made.memory.target.cpu_moe
    assert whole.target.cpu_moe < moved < LAYERS
    told = f"the experts of {moved} of {LAYERS} layers in main memory"
    assert any(told in each for each in made.notices)
    log = start_backend().section()
    found = answer(request)
    assert allocated(log, device().label).total <= room
    monkeypatch.undo()
    assert found.tokens == answer(replace(request, n_cpu_moe=moved)).tokens


def test_what_a_pass_is_measured_to_take_includes_the_device_s_work(
    on_device: Model, text: list[int]
) -> None:
    """`decode` waits for logits; without any it only submits work, as a wait afterwards shows."""
    with Context(on_device, OPTIONS) as context:

        def passed(n: int, n_logits: int) -> tuple[float, float]:
            """Seconds until `decode` came back, and until the device was at rest."""
            context.truncate(20)
            context.wait()
            begun = perf_counter()
            context.decode(text[20 : 20 + n], n_logits)
            back = perf_counter() - begun
            context.wait()
            return back, perf_counter() - begun

        context.decode(text[:20], 1)
        times = [passed(n_logits and 33, n_logits) for n_logits in (1, 33) for _ in range(3)]
        assert median(back / whole for back, whole in times) > 0.95
        handed = [passed(33, 0) for _ in range(5)]
        assert median(back / whole for back, whole in handed) < 0.5
        found = measure(context, (1, 9, 33), budget=2.0).points
        for n, seconds in found.items():  # other programs may have more to do at one moment
            assert seconds > 0.5 * min(passed(n, n)[1] for _ in range(5))


def test_an_answer_is_stopped() -> None:
    session = load_session(asked(n_predict=-1), progress=lambda *_: None, cancel=Cancel())
    cancel = Cancel()
    try:
        for event in session.turn("Tell me a story about a dog and a cat.", cancel):
            if isinstance(event, RoundText):
                cancel.set()
    finally:
        session.close()
    assert isinstance(event, TurnEnd)
    assert event.reason is FinishReason.CANCELLED


@pytest.mark.parametrize(("shares", "layers"), [((), [5, 4]), (("--tensor-split", "3,1"), [7, 2])])
def test_two_devices_share_a_target(shares: tuple[str, ...], layers: list[int]) -> None:
    """The same driver twice."""
    if not software():
        pytest.skip("the software driver can be named twice")
    options = (
        *("run", "toy", "-p", "Tell me a story.", "--temp", "0", "-n", "40", "--json"),
        *("--draft", "none", "-c", "512", "-t", "1", "-fa", "off", "-ngl", "all"),
    )
    two = json.loads(
        localspec(*options, *shares, changed={"GGML_VK_VISIBLE_DEVICES": "0,0"}).stdout
    )
    one = json.loads(localspec(*options).stdout)
    assert two["settings"]["tensor_split"] == dict(zip(("Vulkan0", "Vulkan1"), layers, strict=True))
    assert one["settings"]["tensor_split"] is None
    assert two["tokens"] == one["tokens"]
    assert len(one["tokens"]) == 40


def test_doctor_names_it() -> None:
    done = localspec("doctor")
    assert f"device      {device().label}: {device().name}" in done.stdout
    assert any(each in done.stdout.splitlines()[1] for each in backends() if each != "CPU")


def test_more_than_the_device_has_is_refused_before_it_is_loaded() -> None:
    per_token = load_plan(check(asked(ctx_size=4096))).memory.target_need.device_cache / 4096
    too_many = str(int(1.1 * device().free / per_token))
    options = ("run", "toy", "-p", "Tell me a story.", "--ctx-size", too_many, "-ngl", "all")
    done = localspec(*options, "--gamma", "0", "-fa", "off")
    assert done.returncode == 1
    assert re.search(r"need .* on the accelerator, .* are free there", done.stderr.splitlines()[-2])


def test_what_the_device_has_no_room_for_while_loading_is_told() -> None:
    """The device has less memory than it reports, so the cache cannot be allocated."""
    if not device().label.startswith("Vulkan"):
        pytest.skip("the limit is one of llama.cpp's Vulkan")
    limits = dict.fromkeys(LIMITS, str(2**20))
    options = ("run", "toy", "-p", "Tell me a story.", "--ctx-size", "4096", "-ngl", "all")
    done = localspec(*options, "--gamma", "0", "-fa", "off", changed=limits)
    assert done.returncode == 1, done.stderr
    assert "no memory for a context" in done.stderr


def chat_with(pair: str, data: Path, *options: str, **environment: str) -> Terminal:
    kept = {name: os.environ[name] for name in KEPT if name in os.environ}
    arguments = ["chat", pair, "--temp", "0", *options]
    return Terminal(arguments, data, 120, 40, environment=kept | environment)


def test_the_chat_answers_on_it(tmp_path: Path) -> None:
    """With the driver that crashes, no pass is measured and none is drafted."""
    without = ("--draft", "none", "--gamma", "0", "-fa", "off") if crashing() else ()
    chat = chat_with("toy", tmp_path, "-n", "24", *without)
    try:
        chat.sees("ready")
        chat.child.send("Tell me a story.\r")
        chat.until(lambda: "ready" in chat.text() and "tokens/s" in chat.text(), "an answer")
        assert device().name[:8] in chat.text()
    finally:
        chat.child.close(force=True)


def test_the_chat_stays_where_its_memory_runs_out_in_a_conversation(
    toy_target: Path, tmp_path: Path
) -> None:
    """The driver needs more memory while it reads a long prompt, as if another program took it.

    llama.cpp's Vulkan copies a quantised cache, as far as the text goes, when it reads 64 tokens
    or more at once. A limit of 2.5 MB for one allocation is too little for the copy of more than
    640 tokens, and enough for every allocation that loading the model needs. The device must read
    80 tokens a second: on a slower one, passes over a prompt are shorter.
    """
    if not device().label.startswith("Vulkan"):
        pytest.skip("the limit is one of llama.cpp's Vulkan")
    shape = Sizes(n_layer=1, n_embd=1024, n_head=16, n_head_kv=16, n_ff=64, n_ctx=1024)
    vocabulary = read_vocabulary(toy_target)
    wide = write_llama(tmp_path / "wide.gguf", vocabulary, shape, seed=0, type="q8_0")
    limits = dict.fromkeys(LIMITS, str(5 * 2**19))
    options = ("--draft", "none", "-c", "1024", "-n", "8", "-fa", "on", *CACHE)
    chat = chat_with(str(wide), tmp_path, *options, **limits)
    try:
        chat.sees("ready")
        chat.child.send("Tell me a story.\r")
        chat.until(lambda: "ready" in chat.text() and "tokens/s" in chat.text(), "an answer")
        chat.child.send(f"\x1b[200~{'a dog and a cat ' * 180}\x1b[201~\r")
        chat.sees("the models are gone")
        assert "crashed (SIGABRT)" in chat.text()
        chat.child.send("/clear\r")
        chat.child.send("Tell me a story.\r")
        chat.until(lambda: "ready" in chat.text() and "tokens/s" in chat.text(), "an answer")
    finally:
        chat.child.close(force=True)
