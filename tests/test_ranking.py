"""What is expected of pairs on this machine, their order, and what is proposed."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from localspec import machine
from localspec.chat.session.pair import LoadRecord
from localspec.engine.length.cost import Costs, Curve
from localspec.engine.length.stopping import gamma_for
from localspec.engine.llama import Model, kernels
from localspec.engine.llama import machine as this_machine
from localspec.loading.measurements import expected_speed, ranking
from localspec.loading.measurements.expected_speed import note
from localspec.loading.measurements.ranking import MachineSpeed, PairCosts
from localspec.pairs.gguf.header import read_model
from localspec.pairs.hub.retries import RetryPolicy
from localspec.pairs.memory.outlook import MemoryFit
from localspec.pairs.names import catalogue
from localspec.pairs.names.catalogue import ListedPair
from localspec.pairs.names.repository_files import quant_bits, quant_of, weight_type
from localspec.pairs.report.examine import examine
from tests.support import gguf_models
from tests.support.hub_world import World

GB = 10**9


def row(
    name: str, gb: float, kind: str = "chat", verdict: str = "fits", **more: object
) -> ListedPair:
    n_bytes = int(gb * GB)
    known = {"n_bytes": n_bytes, "target_bytes": n_bytes, "memory_gb": round(1.3 * gb)}
    fit = MemoryFit(n_bytes, 16 * GB, 16 * GB, verdict)
    given = {"kind": kind, "fit": fit, "licence": "MIT", "state": "available", "target": "t"}
    return ListedPair(**(known | given | {"name": name, "draft": "none", "verified": False} | more))


def costs(rate: float, weights: float = 0.3, *, flat: bool = True, **more: object) -> PairCosts:
    """Costs where `weights` GB are read at `rate` GB/s; further tokens cost nothing if `flat`.

    Otherwise each further token costs as much as the first.
    """
    one = weights / rate
    times = tuple(one * (1.0 if flat else n) for n in range(26))
    return PairCosts(int(weights * GB), times, **({"bits": 8.5} | more))


def speed(rate: float = 20, **more: object) -> MachineSpeed:
    return MachineSpeed("here", {"demo": costs(rate)}, **more)


def test_a_token_takes_as_long_as_its_weights_are_read() -> None:
    (one,) = ranking.ranked([row("a", 2)], speed(20))
    assert one.baseline == pytest.approx(10)
    assert one.drafted == one.baseline
    assert not one.measured
    (mixture,) = ranking.ranked([row("a", 2, active=0.1)], speed(20))
    assert mixture.baseline == pytest.approx(100)


def noted(
    seconds: Callable[[float], float],
    *,
    mixture: bool = False,
    partly: bool = False,
    draft: float | None = 0.03,
    named: str | None = None,
    saves_nothing: bool = False,
    doubtful: bool = False,
    block: int = 0,
    **how: object,
) -> None:
    """Note the demo's costs: 300 MB take `seconds(0.3)` a pass, its draft `seconds(draft)`.

    The weights in memory are 1.8 times those in the file. `named` is what ``--draft`` says.
    """

    def context(gb: float) -> SimpleNamespace:
        counts = {"file_weights": int(gb * GB), "n_params": int(gb * GB * 8 / 4.8)}
        more = {"weights_bytes": int(1.8 * gb * GB), "is_mixture": mixture}
        more["partly_offloaded"] = partly
        said = "llama 0.5B Q4_K - Medium"
        return SimpleNamespace(model=SimpleNamespace(**counts, **more, description=said))

    drafter = None if draft is None else context(draft)
    pair = SimpleNamespace(
        name="demo",
        reference=("demo", named),
        target=context(0.3),
        draft=drafter,
        block=block,
        drafts={} if drafter is None else {"draft": drafter},
        saves_nothing=saves_nothing,
        loaded=LoadRecord(ctx_size=512, threads=1, **how),
        devices_before=(),
    )
    flat = {n: seconds(0.3) for n in (1, 2, 4, 8, 32)}
    note(
        pair,
        Costs(
            {0: flat},
            {} if draft is None else {"draft": {0: dict.fromkeys((1, 32), seconds(draft))}},
        ),
        doubtful=doubtful,
    )


def test_what_no_weights_explain_does_not_grow_with_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pass takes 1 ms plus 40 ms for every GB; target and draft together tell the two apart."""
    monkeypatch.setenv("LOCALSPEC_CACHE", str(tmp_path))

    def seconds(gb: float) -> float:
        return 0.001 + 0.04 * gb

    noted(seconds)
    found = ranking.recall()
    assert found is not None
    assert found.pairs["demo"].bits == pytest.approx(4.8)
    assert found.pairs["demo"].weight_type == "Q4_K"
    for gb in (0.6, 1.2, 2.4):
        drafted = row("a", gb, drafter="draft", draft_bytes=int(gb * GB / 10))
        (one,) = ranking.ranked([drafted], found)
        assert one.baseline == pytest.approx(1 / seconds(gb), rel=1e-6)
        gain = gamma_for(0.7, [seconds(gb)] * 26, seconds(gb / 10))[1]
        assert one.drafted == pytest.approx(one.baseline * gain, rel=1e-6)


def test_what_was_disturbed_is_doubtful_and_gives_way_to_what_was_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCALSPEC_CACHE", str(tmp_path))
    rows = [row("demo", 0.3, state="installed"), row("other", 2)]

    def told(rate: float, *, doubtful: bool) -> tuple[float, bool, bool]:
        ranking.remember("demo", costs(rate, doubtful=doubtful), None, None)
        known = ranking.recall()
        assert known is not None
        mine, other = (known.basis(ranking.ranked([each], known)) for each in rows)
        return 0.3 / known.pairs["demo"].times[1], "busy" in mine, "busy" in other

    for rate, doubtful, there in (
        (10, True, (10, True, True)),
        (12, True, (12, True, True)),
        (11, False, (11, False, False)),  # slower, and to be trusted
        (20, True, (11, False, False)),
        (14, False, (14, False, False)),
    ):
        found = told(rate, doubtful=doubtful)
        assert found == (pytest.approx(there[0]), *there[1:])


def test_a_record_without_a_type_gives_way_as_others_do_and_learns_the_type(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCALSPEC_CACHE", str(tmp_path))
    calm = costs(20, step=0.001)
    # A disturbed one, and one without a draft.
    for less in (costs(30, step=0.001, doubtful=True), costs(30)):
        ranking.remember("demo", calm, None, None)
        ranking.remember("demo", replace(less, weight_type="Q8_0"), None, None)
        found = ranking.recall()
        assert found is not None
        assert found.pairs["demo"] == replace(calm, weight_type="Q8_0")
    ranking.remember("demo", replace(calm, weight_type="Q4_K", doubtful=True), None, None)
    found = ranking.recall()
    assert found is not None
    assert found.pairs["demo"].weight_type == "Q4_K"  # another file


def test_only_what_this_machine_has_now_is_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A card that was removed, or a library that was built anew, leaves no speed that is better."""
    monkeypatch.setenv("LOCALSPEC_CACHE", str(tmp_path))
    noted(lambda gb: gb / 10, rpc=("a:1",))
    assert ranking.recall() is None
    noted(lambda gb: gb / 10)
    ranking.remember("other", costs(30), None, None, f"{this_machine()}; {kernels()}")
    for found, changed, rate, kept in (
        ("this build", kernels(), 10, ["demo", "other"]),
        ("another build", "another", 5, ["demo"]),
    ):
        monkeypatch.setattr(expected_speed, "kernels", lambda changed=changed: changed)
        noted(lambda gb: gb / 5)
        known = ranking.recall()
        assert known is not None
        assert (found, sorted(known.pairs)) == (found, kept)
        assert 0.3 / known.pairs["demo"].times[1] == pytest.approx(rate)


# T(n) / T(1) of llama models of 300 MB, two threads, AMD EPYC (Zen 5, AVX-512).
SIZES = (1, 2, 3, 4, 5, 6, 8, 16)
F16 = (1, 1.23, 1.34, 1.48, 1.61, 1.66, 1.96, 2.66)
Q4_K_M = (1, 1.55, 2.0, 2.56, 3.1, 3.59, 4.09, 5.02)


def curve(points: tuple[float, ...], one: float = 0.01) -> tuple[float, ...]:
    whole = Curve(dict(zip(SIZES, (one * each for each in points), strict=True)))
    return tuple(whole.times(16))


def test_every_further_token_of_a_check_costs_by_its_weights_and_not_by_their_bytes() -> None:
    known = MachineSpeed("here", {"demo": PairCosts(3 * GB // 10, curve(F16), bits=16.0)})
    pair = row("a", 3, drafter="draft", draft_bytes=3 * GB // 10)

    def gain(bits: float) -> float:
        (one,) = ranking.ranked([replace(pair, bits=bits)], known)
        assert one.baseline == pytest.approx(10)
        return one.drafted / one.baseline

    of_f16, of_q4_k_m = (gamma_for(0.7, curve(each, 0.1), 0.01)[1] for each in (F16, Q4_K_M))
    assert gain(16) == gain(0) == pytest.approx(of_f16)  # 0: not known
    assert gain(4.86) == pytest.approx(of_q4_k_m, rel=0.05)
    assert of_f16 > 1.3 * of_q4_k_m
    twice = [0.1 * (1 + 2 * (each / 0.01 - 1)) for each in curve(F16)]
    assert gain(8) == pytest.approx(gamma_for(0.7, twice, 0.01)[1])


def test_a_check_that_is_measured_faster_than_one_token_takes_as_long() -> None:
    faster = (0.0, 0.1, *(0.09,) * 24)
    known = MachineSpeed("here", {"demo": PairCosts(GB, faster, bits=32.0)})
    pair = row("a", 1, drafter="draft", draft_bytes=GB // 10, bits=2.0)
    (one,) = ranking.ranked([pair], known)
    assert one.drafted / one.baseline == pytest.approx(gamma_for(0.7, (0.1,) * 26, 0.01)[1])


def test_a_mixture_and_what_an_earlier_version_kept_tell_of_no_other_pair(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCALSPEC_CACHE", str(tmp_path))
    rows = [row("other", 2), row("demo", 0.3, state="installed")]

    def told() -> str:
        known = ranking.recall()
        assert known is not None
        mine, other = ranking.ranked(rows, known)
        assert (mine.baseline, mine.measured) == (pytest.approx(10), True)
        assert (other.row.name, other.baseline, other.short) == ("other", None, "fits")
        assert ranking.ranked(rows[:1], known)[0].baseline is None
        assert known.basis([other]) == ""
        return known.basis([mine, other])

    noted(lambda gb: 0.1 * gb / 0.3, mixture=True)
    assert told() == "as measured"
    noted(lambda gb: 0.1 * gb / 0.3)
    path = tmp_path / "speed.json"
    known = json.loads(path.read_text())
    assert known["pairs"]["demo"].pop("bits") == pytest.approx(4.8)
    path.write_text(json.dumps(known))
    assert told() == "as measured"
    noted(lambda gb: 0.2 * gb / 0.3)  # slower, and tells more
    kept = ranking.recall()
    assert kept is not None
    assert ranking.ranked(rows, kept)[1].baseline == pytest.approx(0.75)


@pytest.mark.parametrize("how", [{"partly": True}, {"from_disk": True}])
def test_a_model_that_is_not_read_from_one_memory_tells_of_no_other_pair(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: dict[str, bool]
) -> None:
    """Its time has two parts, of which one grows with the weights far more than the other."""
    monkeypatch.setenv("LOCALSPEC_CACHE", str(tmp_path))

    def told() -> list[float | None]:
        rows = [row("demo", 0.3, state="installed"), row("other", 3)]
        return [one.baseline for one in ranking.ranked(rows, ranking.recall())]

    noted(lambda gb: gb, **how)
    assert told() == [pytest.approx(1 / 0.3), None]
    noted(lambda gb: gb / 10)
    whole = [pytest.approx(10 / 0.3), pytest.approx(10 / 3)]
    assert told() == whole
    noted(lambda gb: gb, **how)
    assert told() == whole


def test_a_pair_is_listed_with_its_own_draft_whatever_else_was_tried_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A draft of a tenth of the target pays, one as large does not; lookup says nothing of it."""
    monkeypatch.setenv("LOCALSPEC_CACHE", str(tmp_path))
    listed = row("demo", 0.3, state="installed", drafter="draft", draft_bytes=3 * GB // 100)

    def pays(**how: object) -> bool:
        noted(lambda gb: 0.001 + 0.1 * gb, **how)
        (one,) = ranking.ranked([listed], ranking.recall())
        assert one.measured
        assert ("its draft is not expected to pay here" in one.speed) is not one.gains
        return one.gains

    assert pays(named="lookup", draft=None)
    assert pays(named="other", draft=0.3)
    assert not pays(draft=None, saves_nothing=True)
    assert not pays(named="lookup", draft=None)
    assert not pays(named="other")
    assert pays()  # another draft is its own now
    assert pays(draft=None)  # it could not be loaded
    assert pays(draft=0.3, doubtful=True)
    assert pays(named="other", draft=0.3)
    assert not pays(draft=0.3)
    assert pays(named="auto")


def test_a_head_that_guesses_a_block_is_listed_with_one_pass_for_all_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pass takes a third of the target's: too long for a token, and little for seven."""
    monkeypatch.setenv("LOCALSPEC_CACHE", str(tmp_path))
    listed = row("demo", 0.3, state="installed", drafter="draft", draft_bytes=GB // 10, block=7)

    def gain() -> float:
        (one,) = ranking.ranked([listed], ranking.recall())
        return one.drafted / one.baseline

    seven = pytest.approx(gamma_for(0.7, [1.0] * 9, 0.0, first=1 / 3)[1])
    noted(lambda gb: gb / 10, draft=None)
    assert gain() == seven  # before it was loaded
    noted(lambda gb: gb / 10, draft=0.1, block=7)
    found = ranking.recall()
    assert found is not None
    assert (found.pairs["demo"].block, found.pairs["demo"].step) == (7, pytest.approx(0.01))
    assert gain() == seven
    assert gain() > 1.3 * gamma_for(0.7, [1.0] * 26, 1 / 3)[1]


def test_layers_in_two_places_are_told_from_layers_in_one(toy_target: Path) -> None:
    """A number beyond all layers, such as the usual 99, means all."""
    with Model.load(toy_target, n_gpu_layers=0) as model:
        layers = int(model.metadata["llama.block_count"])
        for on_cards, partly in ((0, False), (1, True), (layers, True), (99, False), (-1, False)):
            model.gpu_layers, model.offloaded = on_cards, on_cards != 0
            assert model.partly_offloaded is partly


def test_list_loads_neither_the_engine_nor_the_hub_client_once_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCALSPEC_CACHE", str(tmp_path / "cache"))
    ranking.remember("gone", costs(20), None, None)
    script = (
        "import sys; sys.argv = ['localspec', 'list']\n"
        "from localspec.cli import subcommands\n"
        "try:\n    subcommands.main()\nexcept SystemExit as stop:\n    assert not stop.code\n"
        "loaded = {'llama_cpp', 'textual', 'numpy', 'huggingface_hub.file_download'}\n"
        "assert not loaded & set(sys.modules), loaded & set(sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr


def test_list_tells_what_its_speeds_rest_on_and_where_there_is_nothing(
    hub_world: World, starter_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCALSPEC_CACHE", str(tmp_path / "cache"))
    ranking.remember("gone", costs(20, bits=0.0), None, None)
    assert "Speeds can be expected once" in hub_world.run("list", "--no-scan").out
    ranking.remember("gone", costs(20, doubtful=True), None, None)
    said = hub_world.run("list", "--no-scan").out
    assert "No pair is proposed yet: a chat measures this machine once it is idle." in said
    assert said.count("busy") == 1
    assert "For this machine:" not in said
    assert "a rough estimate" in said
    ranking.remember("gone", costs(20), None, None)
    said = hub_world.run("list", "--no-scan").out
    assert "Tokens/s are expected from gone, which reads 20 GB of weights a second" in said
    shown = hub_world.run("show", "starter", "--no-scan").out
    assert said.partition("For this machine:")[2].partition("Memory:")[0].strip() in shown


def test_show_says_what_list_expects_of_a_pair_and_needs_no_network_for_it(
    hub_world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCALSPEC_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    ranking.remember("gone", costs(20), None, None)
    listed = json.loads(hub_world.run("list", "--no-scan", "--json").out)["pairs"]
    speeds = next(one for one in listed if one["name"] == "qwen3-8b")["tokens_per_second"]
    done = hub_world.run("show", "qwen3-8b", "--no-scan")
    assert done.code == 0
    assert "offline mode is on; this much is known" in done.err
    assert f"about {speeds['plain']:.1f} tokens/s" in done.out
    assert "Qwen/Qwen3-8B-GGUF" in done.out
    assert hub_world.run("show", "nobody/nothing", "--no-scan").code == 1


def test_show_does_not_deny_a_measurement_that_it_tells(
    hub_world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a busy machine measured is told, and no profile of passes is stored."""
    monkeypatch.setenv("LOCALSPEC_CACHE", str(tmp_path / "cache"))
    ranking.remember("starter", costs(20, doubtful=True), None, None)
    said = hub_world.run("show", "starter", "--no-scan").out
    assert "as measured, though on a busy machine\n" in said
    assert "measured    not in full yet" in said


def test_of_a_loaded_model_the_weights_in_its_file_count(toy_target: Path, tmp_path: Path) -> None:
    header = read_model(toy_target).header
    with Model.load(toy_target) as model:
        assert model.file_weights == header.tensor_bytes
        assert 8 * model.file_weights / model.n_params == pytest.approx(header.bits)
        assert 8.5 <= header.bits < 8.6  # Q8_0, and some norms
        assert not model.is_mixture
        assert " Q8_0" in model.description
    with Model.load(gguf_models.write_random_moe(tmp_path / "moe.gguf")) as mixture:
        assert mixture.is_mixture


@pytest.mark.parametrize(
    ("file", "bits"),
    [
        *(("a-F16.gguf", 16), ("a-bf16.gguf", 16), ("a-F32.gguf", 32), ("a-q8_0.gguf", 8.5)),
        *(("a-Q4_0.gguf", 4.5), ("a-IQ4_XS.gguf", 4.25), ("a-MXFP4.gguf", 4.25)),
        *(("a-Q4_K_M.gguf", 4.86), ("a-UD-Q4_K_XL.gguf", 4.86), ("a-Q6_K.gguf", 6.56)),
        *(("a-IQ3_XXS.gguf", 3.06), ("a-Q3_K_M.gguf", 3.9), ("a-UD-Q2_K_XL.gguf", 3.0)),
        *(("a-MXFP4_MOE.gguf", 4.5), ("a-TQ1_0.gguf", 1.69), ("a.gguf", 0), ("", 0)),
        ("a-Q4_0_4_8.gguf", 0),
    ],
)
def test_bits_of_a_weight_are_about_known_from_a_files_name(file: str, bits: float) -> None:
    assert quant_bits(quant_of(file)) == pytest.approx(bits, rel=0.1)


@pytest.mark.parametrize(
    ("quant", "kind"),
    [
        *(("Q4_K_M", "Q4_K"), ("UD-Q4_K_XL", "Q4_K"), ("Q4_K", "Q4_K"), ("Q6_K", "Q6_K")),
        *(("Q8_0", "Q8_0"), ("IQ4_XS", "IQ4_XS"), ("MXFP4_MOE", "MXFP4"), ("BF16", "BF16")),
        *(("UD-Q8_K_XL", "Q8_0"), ("IQ3_M", "IQ3_S"), ("FP16", "F16"), ("F16", "F16")),
        *(("", ""), ("Q4", ""), ("Medium", "")),
    ],
)
def test_the_type_of_most_weights_is_known_from_a_quant(quant: str, kind: str) -> None:
    assert weight_type(quant) == kind


def test_a_file_is_expected_to_draft_as_models_of_its_type_do_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCALSPEC_CACHE", str(tmp_path))
    assert ranking.drafted_speed("Q8_0", GB) is None
    ranking.remember("large", costs(20, 4.0, weight_type="Q4_K", flat=False), None, None)
    ranking.remember("small", costs(10, 0.5, weight_type="Q8_0"), None, None)
    ranking.remember("busy", costs(20, weight_type="Q6_K", doubtful=True), None, None)
    ranking.remember("mixture", costs(20, weight_type="MXFP4", bits=0.0), None, None)
    assert ranking.drafted_speed("Q4_K_M", 2 * GB) == pytest.approx(10)
    flat = gamma_for(0.7, (0.1,) * 26, 0)[1]
    assert ranking.drafted_speed("Q8_0", 2 * GB) == pytest.approx(5 * flat)
    assert ranking.drafted_speed("Q8_0", 8 * GB) is None  # much larger than what was measured
    for unknown in ("Q6_K", "MXFP4", "IQ4_XS", ""):
        assert ranking.drafted_speed(unknown, GB) is None
    card = costs(200, 4.0, on_device=True, weight_type="Q4_K")
    ranking.remember("large", card, None, None)
    assert ranking.drafted_speed("Q4_K_M", 2 * GB) == pytest.approx(100 * flat)
    assert ranking.drafted_speed("Q8_0", GB) is None  # this type was timed on the CPU


def test_a_file_is_expected_to_take_as_long_as_a_listed_pair_of_its_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half of a small model's pass is overhead, which makes its T(n)/T(1) flatter."""
    monkeypatch.setenv("LOCALSPEC_CACHE", str(tmp_path))
    times = tuple(0.2 + 0.03 * max(0, n - 1) for n in range(26))
    measured = PairCosts(GB, times, overhead=0.1, bits=8.5, weight_type="Q8_0")
    ranking.remember("small", measured, None, None)
    known = ranking.recall()
    assert known is not None
    listed = ranking.expected_costs(row("a", 4), known)
    assert listed is not None
    assert listed.times[1] == pytest.approx(0.5)
    gain = gamma_for(0.7, listed.times, 0.0)[1]
    assert ranking.drafted_speed("Q8_0", 4 * GB) == pytest.approx(gain / 0.5)


def test_a_row_knows_its_bits_from_the_header_or_else_from_the_name(toy_target: Path) -> None:
    rows = {one.name: one for one in catalogue.rows()}
    assert rows["toy"].bits > 8
    assert all(one.bits > 0 for one in rows.values())
    report = examine(str(toy_target), None, RetryPolicy(), scan=False)
    assert report.listed.bits == read_model(toy_target).header.bits


def test_a_draft_that_is_no_faster_than_its_target_tells_nothing_of_weights() -> None:
    for target, draft in (((GB, 0.1), (GB, 0.09)), ((GB, 0.1), (GB // 10, 0.2))):
        assert ranking.overhead(*target, *draft) == 0
    assert ranking.overhead(GB, 0.1, GB // 10, 0.001) == 0  # nor does a line that begins below zero


def test_a_draft_helps_where_checking_is_cheap_and_nowhere_else() -> None:
    pair = row("a", 2, drafter="draft", draft_bytes=GB // 10)
    (cheap,) = ranking.ranked([pair], speed(20))
    assert cheap.drafted > 1.5 * cheap.baseline
    dear = MachineSpeed("here", {"demo": costs(20, flat=False)})
    assert ranking.ranked([pair], dear)[0].drafted == pytest.approx(10)
    (mixture,) = ranking.ranked([row("a", 2, active=0.2, drafter="mtp")], speed(20))
    assert mixture.drafted == mixture.baseline


def test_a_step_of_a_head_takes_what_its_bytes_take() -> None:
    """Of Qwen3.8-27B: its layer, and the output matrix, in which most of the bytes are."""
    head = row("a", 16.2, drafter="mtp")
    reads = ranking.draft_reads(head)
    assert reads is not None
    layer, matrix = 0.4e9 * 4.8 / 8, 248_320 * 5_120 * 6.56 / 8
    assert reads == pytest.approx(layer + matrix, rel=1e-6)
    (one,) = ranking.ranked([head], speed(20))
    assert one.drafted / one.baseline == pytest.approx(
        gamma_for(0.7, [1.0] * 26, reads / head.target_bytes)[1]
    )


def test_what_is_taken_to_be_accepted_is_told_where_something_drafts_alone() -> None:
    known = MachineSpeed("here", {"demo": costs(20), "mine": costs(10, 2.0, step=0.01)})
    alone, drafts, mine = (
        ranking.ranked([one], known)
        for one in (
            row("a", 2),
            row("a", 2, drafter="draft", draft_bytes=GB // 10),
            row("mine", 2, drafter="draft", draft_bytes=GB // 10, state="installed"),
        )
    )
    rate = "expected from mine, which reads 10 GB of weights a second here"
    accepted = ", if 70 % of drafted tokens are accepted"
    assert known.basis(alone) == rate
    assert known.basis(drafts) == known.basis([*alone, *drafts]) == rate + accepted
    assert known.basis(mine) == "as measured" + accepted
    assert MachineSpeed("here").basis(alone) == ""


def test_the_gain_of_a_head_is_that_of_its_own_acceptance() -> None:
    """It was measured, so that nothing is said of an assumed one."""
    known = MachineSpeed("here", {"mine": costs(10, 2.0, step=0.01)})
    assumed, own = (
        ranking.ranked(
            [row("mine", 2, drafter="draft", state="installed", accepted=accepted)], known
        )
        for accepted in (None, 0.4)
    )
    times = known.pairs["mine"].times
    for one, accepted in ((assumed[0], 0.7), (own[0], 0.4)):
        assert one.baseline is not None
        gain = gamma_for(accepted, times, 0.01)[1]
        assert one.drafted == pytest.approx(gain * one.baseline)
    assert own[0].gains
    assert known.basis(own) == "as measured"
    assert "70 %" in known.basis([*own, *assumed])


def test_the_best_is_the_largest_that_writes_as_fast_as_one_reads() -> None:
    rows = [
        row("huge", 17.6),  # it fits, but writes only 1.1 tokens/s
        row("small", 1),
        row("good", 3),
        row("slow", 5),
        row("tight", 12, verdict="tight"),
        row("beyond", 40, verdict="too large"),
        row("coder", 2, "code"),
    ]
    found = ranking.ranked(rows, speed(20))
    names = [one.row.name for one in found]
    assert names == ["good", "coder", "small", "slow", "huge", "tight", "beyond"]
    verdicts = {one.row.name: one.verdict for one in found}
    assert (verdicts["huge"], verdicts["good"], verdicts["tight"]) == ("slow", "fits", "tight")
    assert [one.row.name for one in ranking.proposed(found)] == ["good", "coder"]
    assert "about 1.1 tokens/s: slower than reading speed" in found[4].offer
    assert found[4].short == "slow 1.1"


DRAFTS = {"drafter": "draft", "draft_bytes": GB // 10}


def test_a_pair_that_drafts_goes_before_a_larger_one_that_does_not() -> None:
    rows = [row("large", 3), row("drafts", 2, **DRAFTS), row("coder", 2, "code")]
    found = ranking.ranked(rows, speed(20))
    first, second = ranking.proposed(found)
    assert [one.row.name for one in found] == ["drafts", "coder", "large"]  # proposed ones lead
    here = ranking.ranked([*rows, row("mine", 1, state="installed")], speed(20))
    assert [one.row.name for one in here] == ["mine", "drafts", "coder", "large"]
    assert (first.row.name, first.gains) == ("drafts", True)
    assert "tokens/s, " in first.line
    assert first.line.endswith(" with drafting; 2 GB to fetch, MIT")
    assert second.line == (
        "coder: about 10 tokens/s (no draft model: only repeated text is copied ahead);"
        " 2 GB to fetch, MIT"
    )
    slow = row("large", 5, **DRAFTS)  # below reading speed although it drafts
    (best,) = ranking.proposed(ranking.ranked([slow, row("quick", 1)], speed(8)))
    assert best.row.name == "quick"
    (mixture,) = ranking.proposed(ranking.ranked([row("a", 2, active=0.2, **DRAFTS)], speed()))
    assert "(a mixture of experts: drafting may not help)" in mixture.line


@pytest.mark.parametrize(("needed", "proposed"), [(9.5, True), (9.7, False)])
def test_a_proposed_pair_leaves_two_fifths_of_the_memory(needed: float, *, proposed: bool) -> None:
    fit = MemoryFit(int(needed * GB), 15 * GB, 16 * GB, "fits")
    pair = replace(row("a", 2), fit=fit)
    assert bool(ranking.proposed(ranking.ranked([pair], speed(20)))) is proposed
    card = MachineSpeed("here", {"demo": costs(500, on_device=True)}, room=10 * GB)
    assert ranking.proposed(ranking.ranked([pair], card))  # the card holds it


def test_nothing_is_proposed_before_a_calm_measurement() -> None:
    rows = [row("a", 2, **DRAFTS)]
    busy = MachineSpeed("here", {"demo": costs(20, doubtful=True)})
    (one,) = found = ranking.ranked(rows, busy)
    assert busy.disturbed
    assert one.baseline == pytest.approx(10)  # the list says so, and that it is a rough estimate
    assert busy.basis(found).startswith("expected from demo")
    assert "a rough estimate: the machine was busy" in busy.basis(found)
    assert ranking.proposed(found) == []
    assumed = busy.basis(ranking.ranked([row("b", 2, drafter="draft", draft_bytes=GB // 10)], busy))
    assert assumed.endswith("are accepted; a rough estimate: the machine was busy")
    crawling = MachineSpeed("here", {"demo": costs(2, doubtful=True)})
    (slow,) = ranking.ranked(rows, crawling)
    assert (slow.verdict, slow.short) == ("fits", "~1.0, 2.4 drafted")  # not called slow by that
    calm = replace(busy, pairs={**busy.pairs, "small": costs(10, 0.1)})  # smaller, and calm
    assert not calm.disturbed
    (one,) = ranking.proposed(ranking.ranked(rows, calm))
    assert one.baseline == pytest.approx(5)


def test_a_busy_machine_s_speeds_put_no_large_pair_first() -> None:
    rows = [row("small", 2), row("huge", 14), row("here", 3, state="installed")]
    busy = MachineSpeed("here", {"demo": costs(2, doubtful=True)})
    found = ranking.ranked(rows, busy)
    assert [one.row.name for one in found] == ["here", "small", "huge"]
    assert found[-1].speeds == "0.14"  # and not 0.1
    calm = ranking.ranked(rows, speed(200))
    assert [one.row.name for one in calm] == ["here", "huge", "small"]


def test_where_nothing_was_measured_nothing_is_expected_and_the_order_stays() -> None:
    rows = [row("b", 9), row("a", 1)]
    found = ranking.ranked(rows, None)
    assert [(one.row.name, one.baseline, one.short) for one in found] == [
        ("b", None, "fits"),
        ("a", None, "fits"),
    ]
    assert ranking.proposed(found) == []


def test_what_was_measured_itself_is_no_expectation() -> None:
    known = MachineSpeed("here", {"demo": costs(20), "mine": costs(10, 2.0)})
    mine, other = ranking.ranked([row("other", 2), row("mine", 2, state="installed")], known)
    assert (mine.row.name, mine.measured) == ("mine", True)
    assert mine.baseline == pytest.approx(5)
    assert other.baseline == pytest.approx(5)  # by the larger one of those that were measured


def test_a_model_that_a_card_does_not_hold_is_read_from_both() -> None:
    pairs = {"demo": costs(500, on_device=True)}
    card = MachineSpeed("here", pairs, room=12 * GB)
    (inside,) = ranking.ranked([row("a", 5)], card)
    assert inside.baseline == pytest.approx(100)
    (beyond,) = ranking.ranked([row("a", 15)], card)
    assert beyond.baseline is None  # the processor's reading speed is unknown
    both = MachineSpeed("here", {**pairs, "other": costs(20)}, room=12 * GB)
    (known,) = ranking.ranked([row("a", 15)], both)
    assert 15 / 500 < 1 / known.baseline < 15 / 20


def test_what_the_memory_and_a_card_hold_together_fits_and_is_proposed() -> None:
    rows = [row("good", 17, verdict="too large"), row("beyond", 60, verdict="too large")]
    card = MachineSpeed("here", {"demo": costs(500, on_device=True)}, room=24 * GB)
    good, beyond = found = ranking.ranked(rows, card)
    assert (good.verdict, good.row.fit.available) == ("fits", 40 * GB)
    assert good.baseline == pytest.approx(500 / 17)
    assert (beyond.verdict, beyond.baseline) == ("too large", None)
    assert [one.row.name for one in ranking.proposed(found)] == ["good"]
    assert ranking.proposed(ranking.ranked(rows, replace(card, room=None))) == []


def test_it_is_kept_for_this_machine_and_a_disturbed_measurement_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCALSPEC_CACHE", str(tmp_path))
    assert ranking.recall() is None
    ranking.remember("demo", costs(20), None, ("a card is not used", "build anew"))
    ranking.remember("demo", costs(2), None, None)
    found = ranking.recall()
    assert found is not None
    assert found.pairs["demo"] == costs(20)
    assert found.advice is None
    assert found.basis([]).endswith("reads 20 GB of weights a second here")
    ranking.remember("demo", costs(2, step=0.01), None, None)  # with a draft now
    assert ranking.recall().pairs["demo"].step == 0.01
    monkeypatch.setattr(machine, "processor_name", lambda: "another")
    assert ranking.recall() is None
    (tmp_path / "speed.json").write_text('{"processor": "another", "pairs": {"a": 3}}')
    assert ranking.recall() is None


def test_a_measurement_that_tells_less_takes_none_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCALSPEC_CACHE", str(tmp_path))

    def remembered(*measured: PairCosts) -> dict[str, PairCosts]:
        (tmp_path / "speed.json").unlink(missing_ok=True)
        for each in measured:
            ranking.remember("demo", each, None, None)
        known = ranking.recall()
        assert known is not None
        return known.pairs

    drafts, alone = costs(20, overhead=0.001, step=0.002), costs(30)
    assert (
        remembered(drafts, alone) == remembered(alone, drafts) == {"demo": drafts}
    )  # --draft none
    card, host = costs(500, on_device=True), costs(20)
    assert remembered(card, host) == remembered(host, card)  # -ngl 0
    known = ranking.recall()
    assert known is not None
    assert (known.own("demo"), known.own("other")) == (card, None)
    assert known.largest(on_device=False) == ("demo", host)
    assert known.basis([]).startswith("expected from demo on a card, which reads 500 GB")
    other = costs(10, 0.5)  # another model under that name
    assert remembered(drafts, other) == {"demo": other}


def test_what_a_damaged_file_says_of_one_pair_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCALSPEC_CACHE", str(tmp_path))
    ranking.remember("demo", costs(2, step=0.01), None, None)
    sound = json.loads((tmp_path / "speed.json").read_text())
    for key, value in (
        *(("times", []), ("times", [0.1]), ("times", [0, 0]), ("times", [0.1, -1])),
        *(("weights", 0), ("weights", -1), ("weights", 1 << 60), ("overhead", 1e9), ("step", 0)),
        *(("times", [0, 5e-324]), ("times", [0, 0.1, 1e300]), ("overhead", -1)),
        *(("bits", -1), ("bits", 1e-300), ("bits", 1e300)),
    ):
        other = {**sound["pairs"]["demo"], key: value}
        (tmp_path / "speed.json").write_text(
            json.dumps({**sound, "pairs": {"other": other, **sound["pairs"]}})
        )
        found = ranking.recall()
        assert found is not None
        assert list(found.pairs) == ["demo"], (key, value)
    (tmp_path / "speed.json").write_text(json.dumps({**sound, "room": -(10**12)}))
    (on_a_card,) = ranking.ranked([row("a", 15)], ranking.recall())
    assert (on_a_card.baseline or 1) > 0


def test_the_whole_catalogue_has_an_expectation_where_it_fits() -> None:
    found = ranking.ranked(catalogue.rows(), speed(50))
    assert all(one.baseline for one in found if one.verdict in ("fits", "slow"))
    by_name = {one.row.name: one for one in found}
    assert by_name["lfm2.5-8b-a1b"].row.active < 0.3
    assert by_name["qwen3.5-4b"].row.drafter == "mtp"
