"""Other machines' devices: asked for, missing, silent, wrong, and on a real server on loopback."""

from __future__ import annotations

import ctypes
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from localspec.chat.events import RoundText
from localspec.cli.machine.worker import _how_to_reach
from localspec.engine.cancel import Cancel
from localspec.engine.length.profile import acquaint, measure
from localspec.engine.llama import Context, ContextOptions, Model, add_workers, backends, devices
from localspec.engine.llama.platform import rpc
from localspec.engine.record.stats import DeviceMemory
from localspec.errors import EngineError, UsageError
from localspec.loading import planning
from localspec.loading.load import check, load_session
from localspec.process import messages as m
from tests.support import ENDLESS, ROOMY, toy
from tests.support.command import localspec, run
from tests.support.workers import relay, worker
from tests.test_process import TOY, Heard

MAJOR, MINOR, PATCH = rpc.PROTOCOL


def reply_of(*version: int) -> bytes:
    return (28).to_bytes(8, "little") + bytes([*version, 0]) + bytes(24)


GOOD = reply_of(*rpc.PROTOCOL)
ADD = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_char_p)

needs_backend = pytest.mark.skipif("RPC" not in backends(), reason="this build has no RPC backend")
needs_no_backend = pytest.mark.skipif("RPC" in backends(), reason="this build has the RPC backend")


@contextmanager
def server(reply: bytes) -> Iterator[str]:
    """Something on loopback that takes a hello, says `reply` and hangs up; its address."""
    with closing(socket.create_server(("127.0.0.1", 0))) as listening:

        def serve() -> None:
            connection, _ = listening.accept()
            with connection:
                hello = b""
                while len(hello) < len(rpc.HELLO):
                    hello += connection.recv(64)
                assert hello == rpc.HELLO
                connection.sendall(reply)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"127.0.0.1:{listening.getsockname()[1]}"
        thread.join(10)


def scripted(monkeypatch: pytest.MonkeyPatch, registered: int | None) -> list[object]:
    """A build with the backend, whose servers are registered as `registered`; what was called."""
    called: list[object] = []

    def add(endpoint: bytes) -> int | None:
        called.append(endpoint)
        return registered

    function = ADD(add)
    called.append(function)  # it has to live
    library = SimpleNamespace(
        reg_count=lambda: 0,
        reg_by_name=lambda name: int(name == b"RPC"),
        reg_get_proc_address=lambda _backend, _name: ctypes.cast(function, ctypes.c_void_p).value,
        register=called.append,
        ggml_set_abort_callback=lambda _callback: None,
    )
    monkeypatch.setattr(rpc, "ggml", lambda: library)
    return called


def test_without_servers_nothing_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    called = scripted(monkeypatch, registered=42)
    assert add_workers(()) == ()
    assert len(called) == 1


@pytest.mark.parametrize("endpoint", ["host", "host:", ":50052", "host:port", "host:70000", "h:0",
                                      "h:" + "9" * 5000])  # fmt: skip
def test_an_endpoint_is_a_host_and_a_port(endpoint: str) -> None:
    with pytest.raises(UsageError, match="is not a worker") as refused:
        add_workers([endpoint])
    assert "HOST:PORT" in refused.value.remedy


@needs_no_backend
def test_a_build_without_the_backend_says_how_to_get_it() -> None:
    command = [sys.executable, "-m", "localspec", "run", "-p", "hi", "--rpc", "127.0.0.1:50052"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout) == (1, "")
    first, second = done.stderr.splitlines()
    assert first == "error: this build of llama.cpp has no RPC backend"
    assert "GGML_RPC=on" in second


def test_a_server_is_greeted_and_registered(monkeypatch: pytest.MonkeyPatch) -> None:
    called = scripted(monkeypatch, registered=42)
    with server(GOOD) as endpoint:
        add_workers([endpoint])
    assert called[1:] == [endpoint.encode(), 42]


@pytest.mark.parametrize("other", ["127.0.0.1", "localhost"])
def test_one_worker_under_two_names_is_refused(monkeypatch: pytest.MonkeyPatch, other: str) -> None:
    """The second connection would wait for ever, and the worker's memory would count twice."""
    called = scripted(monkeypatch, registered=42)
    with closing(socket.create_server(("127.0.0.1", 0))) as listening:
        port = listening.getsockname()[1]
        with pytest.raises(UsageError, match="are one worker"):
            add_workers([f"127.0.0.1:{port}", f"{other}:{port}"])
        listening.setblocking(False)
        with pytest.raises(BlockingIOError):  # no connection was made
            listening.accept()
    assert len(called) == 1


def test_a_server_without_devices_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    scripted(monkeypatch, registered=None)
    with server(GOOD) as endpoint, pytest.raises(EngineError, match="has no devices"):
        add_workers([endpoint])


@pytest.mark.parametrize(
    ("reply", "said"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "is not a worker, or is one of another version"),
        (GOOD[:20], "is not a worker"),
        (b"", "is not a worker"),
        (reply_of(MAJOR - 1, MINOR, PATCH), "speaks version 6.0.0 .* this machine 7.0.0"),
        (reply_of(MAJOR, MINOR + 1, PATCH), "speaks version 7.1.0 .* this machine 7.0.0"),
        (reply_of(MAJOR, MINOR, PATCH + 1), "speaks version 7.0.1 .* this machine 7.0.0"),
    ],
)
def test_what_is_no_such_worker_never_gets_to_llama_cpp(
    monkeypatch: pytest.MonkeyPatch, reply: bytes, said: str
) -> None:
    called = scripted(monkeypatch, registered=42)
    with server(reply) as endpoint, pytest.raises(EngineError, match=said):
        add_workers([endpoint])
    assert len(called) == 1


def test_a_wheel_of_localspecs_own_speaks_the_protocol_of_its_source(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scripted(monkeypatch, registered=42)
    monkeypatch.setattr(rpc, "build", lambda: "0.3.36+localspec.1 CPU : AVX2 = 1")
    with (
        server(reply_of(MAJOR, MINOR, PATCH + 1)) as endpoint,
        pytest.raises(EngineError, match=r"speaks version 7\.0\.1"),
    ):
        add_workers([endpoint])


def test_nobody_there_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    called = scripted(monkeypatch, registered=42)
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        endpoint = f"127.0.0.1:{taken.getsockname()[1]}"
    (greeted,) = add_workers([endpoint])
    assert f"no worker answers at {endpoint} (Connection refused)" in greeted.notice
    assert len(called) == 1


def test_one_that_serves_somebody_else_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such a worker accepts the connection and says nothing."""
    called = scripted(monkeypatch, registered=42)
    monkeypatch.setattr(rpc, "_ANSWER_S", 0.1)
    with closing(socket.create_server(("127.0.0.1", 0))) as busy:
        (greeted,) = add_workers([f"127.0.0.1:{busy.getsockname()[1]}"])
    assert "does not answer, or serves another machine: its devices are left out" in greeted.notice
    assert len(called) == 1


def test_a_slow_one_is_used_and_told(monkeypatch: pytest.MonkeyPatch) -> None:
    scripted(monkeypatch, registered=42)
    with server(GOOD) as endpoint, relay(endpoint, 0.1) as far:
        (greeted,) = add_workers([far])
    assert re.search(r"takes 0\.[2-9]\d s to answer, and every pass", greeted.notice)


@pytest.mark.parametrize("host", ["8.8.8.8", "0.0.0.0"])
def test_nothing_is_told_to_other_networks(monkeypatch: pytest.MonkeyPatch, host: str) -> None:
    called = scripted(monkeypatch, registered=42)
    with pytest.raises(UsageError, match="can be reached from other networks") as refused:
        add_workers([f"{host}:50052"])
    assert "ssh -N -L" in refused.value.remedy
    assert len(called) == 1


NEAR = ("127.0.0.1", "10.1.2.3", "172.16.0.1", "172.31.255.255", "192.168.1.20", "169.254.7.7")
FAR = ("8.8.8.8", "0.0.0.0", "172.15.0.1", "172.32.0.1", "192.169.0.1", "11.0.0.1")


@pytest.mark.parametrize("host", [*NEAR, *FAR])
def test_both_sides_keep_to_private_networks(monkeypatch: pytest.MonkeyPatch, host: str) -> None:
    """Workers listen only there unless forced, and clients connect only there; nothing is sent."""
    scripted(monkeypatch, registered=42)
    tried: list[tuple[str, int]] = []

    def refuse(place: tuple[str, int], **_: object) -> None:
        tried.append(place)
        raise OSError("nobody is there")

    monkeypatch.setattr(socket, "create_connection", refuse)
    monkeypatch.setattr(socket, "create_server", refuse)
    sides = (lambda: add_workers([f"{host}:50052"]),
             lambda: rpc._free_address(host, 50052, force=False))  # fmt: skip
    for side in sides:
        if host in FAR:
            with pytest.raises(UsageError, match="can be reached from other networks"):
                side()
        else:
            with suppress(UsageError):  # the listening side: it cannot listen
                side()
    assert tried == ([] if host in FAR else [(host, 50052)] * 2)
    with pytest.raises(UsageError, match="cannot listen at"):
        rpc._free_address(host, 50052, force=True)
    assert tried[-1] == (host, 50052)


@pytest.mark.parametrize(
    ("device", "free", "most", "left"),
    [
        ((0, "CPU"), 900, None, 300),
        ((2, "Vulkan0"), 900, None, 300),
        ((1, "MTL0"), 900, None, 300),  # llama.cpp calls Apple's chips cards
        ((1, "CUDA0"), 900, None, 900),
        ((1, "CUDA0"), 2**64 - 1, None, 0),
        ((2, "Vulkan0"), 900, 200, 200),
        ((2, "Vulkan1"), 900, None, 900),  # 700 of 1000 are set apart for it
        ((2, "Vulkan1"), 250, None, 250),
    ],
)
def test_a_worker_lends_no_memory_that_is_taken(
    monkeypatch: pytest.MonkeyPatch, device: tuple[int, str], free: int, most: int | None, left: int
) -> None:
    def own(_device: int, its_free: Any, whole: Any) -> None:
        its_free[0], whole[0] = free, 1000

    chips = [DeviceMemory("", 0, 0, each != "CUDA0", each) for each in ("Vulkan0", "MTL0", "CUDA0")]
    chips.append(DeviceMemory("", 0, 1000, True, "Vulkan1", own=700))
    registry = SimpleNamespace(dev_type=lambda _: device[0], dev_name=lambda _: device[1].encode())
    monkeypatch.setattr(rpc, "ggml", lambda: registry)
    monkeypatch.setattr(rpc, "devices", lambda: chips)
    monkeypatch.setattr(rpc, "available", lambda: 300)
    kept = rpc._MEMORY_OF(own)
    functions = (ctypes.c_void_p * 3)(None, None, ctypes.cast(kept, ctypes.c_void_p).value)
    told = rpc._tell_memory(ctypes.addressof(functions), most)
    lent, whole = ctypes.c_size_t(), ctypes.c_size_t()
    told(None, ctypes.byref(lent), ctypes.byref(whole))
    assert (lent.value, whole.value) == (left, 1000)
    assert functions[rpc._GET_MEMORY] == ctypes.cast(told, ctypes.c_void_p).value


# A real worker


RUN = [
    "run",
    "toy",
    "-p",
    "Tell me a story.",
    "-t",
    "1",
    "--temp",
    "0",
    "--gamma",
    "3",
    "-fa",
    "off",
]
THERE = ["-ngl", "all"]  # where memory and speed would leave the toy's layers here
BOTH = [*THERE, "--tensor-split", "1,1"]


def _most_resident(pid: int) -> int:
    """Bytes of memory that a process has held at most."""
    status = Path(f"/proc/{pid}/status").read_text()
    return 1024 * int(status.split("VmHWM:")[1].split()[0])


@needs_backend
@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_a_target_on_two_workers_says_what_it_says_here() -> None:
    with worker() as (one, first), worker() as (two, second):
        idle = [_most_resident(each.pid) for each in (first, second)]
        there = run(*RUN, *BOTH, "-n", "40", "--json", "--workers", f"{one},{two}")
        busy = [_most_resident(each.pid) for each in (first, second)]
    assert all(now > before + 6_000_000 for before, now in zip(idle, busy, strict=True))
    here = run(*RUN, "-n", "40", "--json")
    found, expected = json.loads(there.out), json.loads(here.out)
    assert found["tokens"] == expected["tokens"]
    assert found["settings"]["rpc"] == [one, two]
    assert found["settings"]["n_gpu_layers"] == -1
    assert {*found["settings"]["tensor_split"]} == {"RPC0", "RPC1"}


@pytest.mark.slow
@needs_backend
def test_how_devices_share_a_target_is_chosen_as_in_llama_cpp() -> None:
    """`row`, which workers lack, is an error; `tensor` gives the same text as on this machine."""
    with worker() as (one, _), worker() as (two, _):
        two_workers = (*RUN, *BOTH, "-n", "24", "--json", "--workers", f"{one},{two}")
        none = localspec(*two_workers, "--split-mode", "none")
        row = localspec(*two_workers, "--split-mode", "row")
        tensor = localspec(*two_workers, "--split-mode", "tensor", "-fa", "on")
    here, flash = (
        json.loads(localspec(*RUN, "-n", "24", "--json", "-fa", how).stdout)
        for how in ("off", "on")
    )
    alone = json.loads(none.stdout)
    assert alone["tokens"] == here["tokens"]
    assert alone["settings"]["device"] == ["RPC0"]
    assert alone["settings"]["tensor_split"] is None
    assert row.returncode == 1
    assert "does not support split buffers" in row.stderr
    assert "Leave --split-mode row out" in row.stderr
    assert tensor.returncode == 0, tensor.stderr
    together = json.loads(tensor.stdout)
    assert together["settings"]["split_mode"] == "tensor"
    assert together["tokens"] == flash["tokens"]


@pytest.mark.slow
@needs_backend
def test_show_tells_no_speed_of_a_pair_on_workers() -> None:
    """The stored costs are those without workers."""
    show = ("show", str(toy.TARGET), "--no-scan")
    assert "ms a token" in localspec(*show).stdout
    with worker() as (one, _):
        there = localspec(*show, "--rpc", one)
        data = json.loads(localspec(*show, "--rpc", one, "--json").stdout)
    assert "with workers it is not known until the pair is loaded" in there.stdout
    assert "ms a token" not in there.stdout
    assert (data["profile"], data["tokens_per_second"]) == (None, None)


def test_parts_of_tensors_need_flash_attention() -> None:
    with pytest.raises(UsageError, match="needs flash attention"):
        check(replace(TOY, split_mode="tensor", flash_attn="off"))


@pytest.mark.slow
@needs_backend
def test_what_two_workers_take_is_what_was_planned() -> None:
    """Each has buffers, and if they hold all layers, a prompt's inputs are on them four times."""
    with worker() as (one, _), worker() as (other, _):
        for flash, shares in (("on", (1.0, 1.0)), ("off", (1.0, 1.0)), ("on", (1.0, 0.0))):
            request = replace(
                TOY, rpc=(one, other), tensor_split=shares, n_gpu_layers=-1, ctx_size=8192,
                flash_attn=flash, draft="none", gamma=0, threads=1,
            )  # fmt: skip
            planned = planning.load_plan(check(request)).memory.total
            session = load_session(request, progress=lambda *_: None, cancel=Cancel())
            with closing(session):
                memory = session.memory()
                taken = memory.target_weights + memory.target_cache + memory.buffers
            assert abs(planned - taken) < max(0.05 * taken, 32e6)


@pytest.mark.slow
@needs_backend
def test_a_head_here_reads_tensors_of_a_target_that_is_there() -> None:
    """The head stays on this machine; llama.cpp used to end the process over the tensors there."""
    head = ("-n", "12", "--json", "--draft", str(toy.EAGLE3))
    with worker() as (endpoint, _):
        there = localspec(*RUN, *THERE, *head, "--workers", endpoint)
    assert there.returncode == 0, there.stderr
    found, expected = json.loads(there.stdout), json.loads(localspec(*RUN, *head).stdout)
    assert found["tokens"] == expected["tokens"]
    assert found["drafters"]["eagle3"]["accepted"] > 0


@pytest.mark.slow
@pytest.mark.timed
@needs_backend
def test_behind_a_network_a_pass_over_eight_tokens_is_known_to_cost_little_more() -> None:
    """The first pass takes half a second more: llama.cpp asks the worker what the graph needs."""
    with worker() as (endpoint, _), relay(endpoint, 0.02) as far:
        add_workers([far])
        model = Model.load(toy.TARGET, devices=[each.label for each in devices()])
        context = Context(model, ContextOptions(n_ctx=256))
        measured = measure(context, (1, 8, 2), budget=60).points
        begun = time.perf_counter()
        acquaint(context, 12)
        took = time.perf_counter() - begun
        rounds = measure(context, range(2, 13), budget=60).points
        context.close()
        model.close()
        add_workers(())
    assert measured[8] < 2 * measured[1]
    assert max(rounds.values()) < 2 * measured[1]
    assert took < 8


@pytest.mark.slow
@needs_backend
@pytest.mark.skipif(sys.platform != "linux", reason="the options have other names")
def test_a_worker_whose_machine_falls_silent_is_noticed() -> None:
    """If it is off, asleep or cut off, nothing arrives, not even the end of the connection."""
    with worker() as (endpoint, _):
        add_workers([endpoint])
        model = Model.load(toy.TARGET, devices=[each.label for each in devices()])
        port = int(endpoint.split(":")[1])
        (held,) = (each for each in psutil.Process().net_connections("tcp")
                   if each.raddr and each.raddr.port == port)  # fmt: skip
        with socket.socket(fileno=os.dup(held.fd)) as connection:
            assert connection.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
            assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 30_000
        model.close()
        add_workers(())


@pytest.mark.slow
@needs_backend
@pytest.mark.skipif(sys.platform != "linux", reason="where the timers of connections are told")
def test_a_worker_lets_go_of_whoever_falls_silent() -> None:
    """A worker has one client at a time: a silent one would block it until it is restarted."""
    with worker() as (endpoint, _):
        host, port = endpoint.split(":")
        with socket.create_connection((host, int(port))) as client:
            client.sendall(rpc.HELLO)
            client.recv(64)
            ends = [f"{int(port):04X}", f"{client.getsockname()[1]:04X}"]
            until = time.monotonic() + 30
            while timer_of(*ends) != "02" and time.monotonic() < until:
                time.sleep(0.2)
            assert timer_of(*ends) == "02"  # keepalive: it checks that the peer is there


def timer_of(local: str, remote: str) -> str:
    """The timer of one connection of this machine, as proc(5) numbers it."""
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        _, here, there, _, _, timer, *_ = line.split()
        if (here[-4:], there[-4:]) == (local, remote):
            return timer[:2]
    return ""


@pytest.mark.parametrize(
    ("host", "said"),
    [
        ("127.0.0.1", "localspec chat PAIR --workers 127.0.0.1:1234"),
        ("0.0.0.0", "localspec chat PAIR --workers HOST:1234"),
        ("8.8.8.8", "ssh -N -L 1234:8.8.8.8:1234 HOST, and localspec chat PAIR --workers"
                    " 127.0.0.1:1234"),
    ],
)  # fmt: skip
def test_a_worker_says_what_the_other_side_takes(host: str, said: str) -> None:
    assert _how_to_reach(f"{host}:1234") == said


@pytest.mark.parametrize(
    ("asked", "left"),
    [(None, None), ((), ()), (("CUDA0",), ("CUDA0",)), (("CUDA0", "RPC1"), None)],
)
def test_a_worker_that_is_gone_changes_no_choice_of_other_devices(
    asked: tuple[str, ...] | None, left: tuple[str, ...] | None
) -> None:
    """As a choice, None means all devices, and an empty one means none."""
    request = replace(TOY, rpc=("a:1", "b:1"), tensor_split=(1.0, 2.0))
    request = replace(request, device=asked, draft_device=asked)
    found = planning._left_to(("b:1",), request)
    assert (found.rpc, found.tensor_split) == (("b:1",), ())
    assert (found.device, found.draft_device) == (left, left)
    assert planning._left_to(("a:1", "b:1"), request) is request


@needs_backend
@pytest.mark.parametrize("device", [("RPC0",), ("RPC0", "RPC1")])
def test_a_device_of_a_worker_that_is_gone_is_not_asked_for(device: tuple[str, ...]) -> None:
    """It used to end every attempt to load the pair again without the worker."""
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        gone = f"127.0.0.1:{taken.getsockname()[1]}"
    request = replace(TOY, rpc=(gone,), device=device, tensor_split=(1.0,), ctx_size=256)
    session = load_session(request, progress=lambda *_: None, cancel=Cancel())
    try:
        loaded = session.pair.loaded
        assert (loaded.rpc, loaded.device) == ((), None)
        assert any("its devices are left out" in each for each in session.pair.notices)
    finally:
        session.close()


@pytest.mark.slow
@needs_backend
def test_a_worker_tells_what_it_lends() -> None:
    """It tells its limit or free memory, not all of it, even if another worker does not answer."""
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        gone = f"127.0.0.1:{taken.getsockname()[1]}"
    with worker("--memory", "1.5") as (endpoint, _):
        done = localspec("doctor", "--workers", f"{endpoint},{gone}")
    assert done.returncode == 0
    assert re.search(rf"worker +{endpoint}: 1\.[45]\d* GB free of", done.stdout)
    assert f"no worker answers at {gone}" in done.stdout
    assert "no accelerator" in done.stdout


@pytest.mark.slow
@needs_backend
@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--host", "0.0.0.0"), "0.0.0.0 can be reached from other networks"),
        (("--host", "no such host"), "cannot listen at no such host:"),
        (("--device", "CUDA9"), "sees no device CUDA9"),
        (("--memory", "0"), "0"),
    ],
)
def test_a_worker_that_cannot_be_one_says_why(options: tuple[str, ...], said: str) -> None:
    done = localspec("worker", *options)
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow
@needs_backend
def test_a_port_that_somebody_has_is_refused_and_ctrl_c_ends_a_worker() -> None:
    with worker() as (endpoint, running):
        done = localspec("worker", "--port", endpoint.split(":")[1])
        assert done.returncode == 2
        assert "Address already in use" in done.stderr
        running.send_signal(signal.SIGINT)
        assert running.wait(10) == 130


# It reports more than it has, as if another program took memory while the models are loaded.
LIAR = "from localspec.engine.llama.platform import rpc; rpc.available = lambda: 1 << 40;"


@pytest.mark.slow
@needs_backend
@pytest.mark.parametrize(
    ("lie", "said"),
    [
        ("pass;", r"need 3\.22 GB on the accelerator, 5\d\d MB are free"),
        (LIAR, "no memory for"),
    ],
)
def test_a_full_worker_is_no_end_but_a_sentence(lie: str, said: str) -> None:
    options = (*RUN, "-n", "4", "--ctx-size", "120000", "-ngl", "all")
    with worker(before="ulimit -v 700000;", lie=lie) as (endpoint, running):
        done = localspec(*options, "--workers", endpoint)
        assert running.poll() is None
    assert done.returncode == 1
    assert re.search(said, done.stderr.splitlines()[0])


@pytest.mark.slow
@needs_backend
@pytest.mark.parametrize("moment", [0.1, 0.5, 0.9])
def test_a_worker_that_goes_away_ends_the_answer_and_not_the_chat(moment: float) -> None:
    """At most one round is lost, and the next answer comes without the worker."""
    with worker() as (endpoint, running), worker() as (other, _):
        both = replace(TOY, rpc=(other, endpoint), n_gpu_layers=-1, tensor_split=(1.0, 1.0))
        chat = Heard(replace(both, ctx_size=ROOMY, n_predict=-1, grammar=ENDLESS))
        assert not any("left out" in each for each in chat.until(m.Loaded).info.notices)
        chat.ask("Tell me a story.")
        chat.until(m.TurnReported)
        time.sleep(moment)
        running.kill()
        said = chat.until(m.Died).error.message
        assert said.startswith(f"the worker at {endpoint} went away: the process that runs")
        assert other not in said
        chat.engine.reload(())
        info = chat.until(m.Loaded).info
        left_out = [each for each in info.notices if "its devices are left out" in each]
        assert len(left_out) == 1
        assert endpoint in left_out[0]
        chat.ask("Tell me a story.")
        while not isinstance(chat.until(m.TurnReported).event, RoundText):
            pass
        chat.engine.stop()  # this answer would not end either
        assert chat.until(m.TurnOver).error is None
        chat.engine.shut_down()
        assert chat.engine.join(20)
