"""GGUF headers are read, or refused with a reason; hostile ones do no harm."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
import tracemalloc
from array import array
from pathlib import Path

import gguf as reference_gguf
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from localspec import formats
from localspec.errors import LocalspecError, ModelFileError
from localspec.pairs.gguf import header as gguf
from localspec.pairs.gguf.cursor import MAX_HEADER_BYTES
from localspec.pairs.gguf.header import GGML_TYPES, GgufHeader
from localspec.safe_text import one_line
from tests.support import ggufs

SMALL = ggufs.model(ggufs.words(12), n_bytes=64)


def parse(data: bytes) -> GgufHeader:
    return gguf.parse_header(lambda at, size: data[at : at + size], len(data), "it")


def write(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


def failure(path: Path) -> ModelFileError:
    with pytest.raises(ModelFileError) as caught:
        gguf.read_model(path)
    assert "\n" not in caught.value.message
    assert caught.value.remedy
    return caught.value


# --- what is read -----------------------------------------------------------------------------


def test_it_agrees_with_the_reference_reader(tmp_path: Path) -> None:
    path = tmp_path / "written.gguf"
    writer = reference_gguf.GGUFWriter(path, "llama")
    writer.add_name("Written")
    writer.add_block_count(3)
    writer.add_float32("some.float", 1.5)
    writer.add_bool("some.bool", True)
    writer.add_int64("some.negative", -5)
    writer.add_array("some.numbers", [1, 2, 3])
    writer.add_token_list([b"a", "\u00e9".encode(), b"\xff\x00", b""])
    writer.add_tensor("one", np.arange(6, dtype=np.float32).reshape(2, 3))
    writer.add_tensor("two", np.ones((4, 32), dtype=np.float16))
    quantised = np.zeros((2, 34), dtype=np.uint8)
    writer.add_tensor("three", quantised, raw_dtype=reference_gguf.GGMLQuantizationType.Q8_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    header = gguf.read_header(path)
    theirs = reference_gguf.GGUFReader(path)
    assert header.architecture == "llama"
    assert header.name == "Written"
    assert header.integer("llama.block_count") == 3
    assert header.metadata["some.float"] == 1.5
    assert header.metadata["some.bool"] is True
    assert header.metadata["some.negative"] == -5
    assert header.integers("some.numbers") == [1, 2, 3]
    assert header.tokens is not None
    assert list(header.tokens) == [b"a", "\u00e9".encode(), b"\xff\x00", b""]
    assert list(header.tokens)[1:3] == ["\u00e9".encode(), b"\xff\x00"]
    assert header.tokens[-1] == b""
    last = header.tensors[-1]
    end = header.data_offset + last.offset + last.n_bytes
    assert 0 <= path.stat().st_size - end < 32  # the last tensor is padded
    for ours, other in zip(header.tensors, theirs.tensors, strict=True):
        assert ours.name == other.name
        assert list(ours.shape) == [int(n) for n in other.shape]
        assert ours.type == other.tensor_type.name
        assert ours.n_bytes == other.n_bytes
        assert header.data_offset + ours.offset == other.data_offset


def test_type_sizes_are_those_of_the_reference() -> None:
    for kind, (block, size) in reference_gguf.GGML_QUANT_SIZES.items():
        if kind.name != "Q8_1":  # the package counts two floats where ggml has two halves
            assert GGML_TYPES[kind.value] == (kind.name, block, size)


def test_missing_and_odd_values_have_defaults() -> None:
    header = parse(ggufs.header([("a", ggufs.STRING, "text"), ("n", ggufs.U32, 7)]))
    assert header.text("n", "default") == "default"
    assert header.integer("a", 3) == 3
    assert header.integers("n") == [7]
    assert header.integers("a") == header.integers("none") == []
    assert header.tokens is None
    assert header.architecture == ""


def test_a_setting_has_no_more_values_than_llama_cpp_takes_and_one() -> None:
    """With all of a stranger's 30 million, checking each layer would take minutes."""
    header = GgufHeader({"a.few": array("B", b"ab"), "a.many": array("B", bytes(30_000_000))})
    assert header.integers("a.few") == [97, 98]
    assert len(header.integers("a.many")) == 513


def test_number_arrays_are_sequences() -> None:
    data = ggufs.header([("f", ggufs.ARRAY, (ggufs.F32, [0.5, 1.5, 2.5]))])
    numbers = parse(data).metadata["f"]
    assert isinstance(numbers, array)
    assert list(numbers) == [0.5, 1.5, 2.5]
    assert numbers[-1] == 2.5
    assert list(numbers[::2]) == [0.5, 2.5]
    with pytest.raises(IndexError):
        numbers[3]


def test_only_what_is_needed_is_read(tmp_path: Path) -> None:
    data = ggufs.model(n_bytes=3_200_000)
    asked: list[tuple[int, int]] = []

    def read(offset: int, size: int) -> bytes:
        asked.append((offset, size))
        return data[offset : offset + size]

    gguf.parse_header(read, len(data), "it")
    assert asked == [(0, 256 * 1024)]


def test_short_reads_are_continued() -> None:
    header = gguf.parse_header(lambda at, size: SMALL[at : at + min(size, 7)], len(SMALL), "it")
    assert header.tokens is not None
    assert len(header.tokens) == 12


def test_split_models_are_read_whole(tmp_path: Path) -> None:
    files = ggufs.split_model("deep", 3)
    for name, data in files.items():
        write(tmp_path / name, data)
    first = tmp_path / "deep-00001-of-00003.gguf"
    model = gguf.read_model(first)
    assert [path.name for path in model.paths] == list(files)
    assert model.file_bytes == sum(map(len, files.values()))
    assert model.header.tensor_bytes == 3 * 4096
    assert "first part" in failure(tmp_path / "deep-00002-of-00003.gguf").message
    (tmp_path / "deep-00003-of-00003.gguf").write_bytes(b"GGUF")
    assert "00003" in failure(first).message
    (tmp_path / "deep-00003-of-00003.gguf").unlink()
    assert "1 are missing: deep-00003-of-00003.gguf" in failure(first).message
    renamed = write(tmp_path / "renamed.gguf", files["deep-00001-of-00003.gguf"])
    assert "one of 3 parts" in failure(renamed).message


def test_a_name_that_counts_no_parts_is_a_name_like_any_other() -> None:
    assert gguf.split_names("m-00001-of-00000.gguf") == ["m-00001-of-00000.gguf"]
    assert gguf.split_names("m-00001-of-00002.gguf")[1] == "m-00002-of-00002.gguf"


def test_a_tensor_without_dimensions_has_one_element_as_in_ggml() -> None:
    (one,) = parse(ggufs.header([], [ggufs.tensor("t", (), 0, 0)]) + bytes(32)).tensors
    assert (one.shape, one.n_bytes) == ((1,), 4)


# --- what is refused --------------------------------------------------------------------------


def test_paths_that_are_no_files(tmp_path: Path) -> None:
    assert "does not exist" in failure(tmp_path / "none.gguf").message
    assert "is a folder" in failure(tmp_path).message
    assert failure(tmp_path / ("x" * 300)).message
    assert failure(Path("a\0b")).message


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no named pipes")
def test_what_never_ends_is_no_model(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.gguf")
    assert "not a regular file" in failure(tmp_path / "pipe.gguf").message
    assert "not a regular file" in failure(Path("/dev/zero")).message


def test_a_permission_error_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Path, mode: str) -> None:
        raise PermissionError(13, "Permission denied")

    path = write(tmp_path / "m.gguf", SMALL)
    monkeypatch.setattr(Path, "open", refuse)
    assert "may not be read" in failure(path).message


@pytest.mark.parametrize(
    ("data", "word"),
    [
        (b"", "an empty file"),
        (bytes(4096), "zero bytes"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "Git LFS pointer"),
        (b"PK\x03\x04" + bytes(60), "zip archive or a PyTorch"),
        (struct.pack("<Q", 40) + b'{"a":{"dtype":"F32"}}' + bytes(40), "safetensors"),
        (b"<!DOCTYPE html><html><body>Not found", "web page"),
        (b'{"error": "Repository not found"} ', "JSON text"),
        (b"Not Found: there is nothing here", "plain text"),
        (b"tjgg" + bytes(60), "before GGUF"),
        (b"\x80\x02}q\x00" + bytes(60), "pickle"),
        (b"\x1f\x8b" + bytes(60), "gzip"),
        (b"\x28\xb5\x2f\xfd" + bytes(60), "zstandard"),
        (b"\x00\x01\xfe\xff" * 20, "unknown kind"),
    ],
)
def test_files_of_other_kinds_are_named(tmp_path: Path, data: bytes, word: str) -> None:
    error = failure(write(tmp_path / "it.gguf", data))
    assert "not a GGUF file" in error.message
    assert word in error.message


@pytest.mark.parametrize(
    ("data", "word"),
    [
        (b"GGUF" + struct.pack(">I", 3) + bytes(100), "big-endian"),
        (b"GGUF" + struct.pack("<I", 1) + bytes(100), "version 1"),
        (b"GGUF" + struct.pack("<I", 99) + bytes(100), "version 99"),
        (SMALL[:-1], f"has {len(SMALL) - 1:,} bytes and its header promises {len(SMALL):,}"),
        (SMALL[:100], "has 100 bytes and its header alone takes at least"),
        (b"GGUF\3\0\0\0", "cut off"),
        (b"GG", "plain text"),
    ],
)
def test_unsupported_and_cut_off_files(tmp_path: Path, data: bytes, word: str) -> None:
    assert word in failure(write(tmp_path / "it.gguf", data)).message


def counts(tensors: int, keys: int) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", 3, tensors, keys)


@pytest.mark.parametrize(
    "data",
    [
        counts(2**63, 0),
        counts(0, 2**64 - 1),
        counts(0, 1) + struct.pack("<Q", 2**62),
        counts(0, 1) + ggufs.text("k") + struct.pack("<I", 99),
        counts(0, 1) + ggufs.text("k") + struct.pack("<IIQ", 9, 8, 2**60),
        counts(0, 1) + ggufs.text("k") + struct.pack("<IIQ", 9, 9, 2**60),
        counts(0, 1) + ggufs.text("k") + struct.pack("<IIQ", 9, 0, 2**64 - 1),
        counts(0, 1) + ggufs.text("") + struct.pack("<II", 4, 0),
        ggufs.header([("a", ggufs.U8, 1), ("a", ggufs.U8, 1)]),
        ggufs.header([("general.alignment", ggufs.U32, 0)]),
        ggufs.header([("general.alignment", ggufs.U32, 24)]),
        ggufs.header([("general.alignment", ggufs.U64, 32)]),
        ggufs.header([], [ggufs.tensor("t", [2**40, 2**40], 0, 0)]),
        ggufs.header([], [ggufs.tensor("t", [2**64 - 1], 0, 0)]),
        ggufs.header([], [ggufs.tensor("t", [33], 8, 0)]),
        ggufs.header([], [ggufs.tensor("t", [32], 4, 0)]),
        ggufs.header([], [ggufs.tensor("t", [1] * 5, 0, 0)]),
        ggufs.header([], [ggufs.tensor("t", [32], 0, 32)]),
        ggufs.header([], [ggufs.tensor("t", [8], 0, 0), ggufs.tensor("t", [8], 0, 32)]),
        ggufs.header([], [ggufs.tensor("t" * 64, [8], 0, 0)]),
    ],
)
def test_senseless_headers_are_refused(tmp_path: Path, data: bytes) -> None:
    failure(write(tmp_path / "it.gguf", data + bytes(100)))
    with pytest.raises(ModelFileError):  # the same over a network, where the size is unknown
        gguf.parse_header(lambda at, size: data[at : at + size], None, "it")


# --- hostile headers --------------------------------------------------------------------------


def survives(data: bytes, total: int | None) -> int:
    """Parse hostile bytes, followed by zeros without end; give the peak of memory in bytes."""

    def read(offset: int, size: int) -> bytes:
        piece = data[offset : offset + size]
        return piece + bytes(size - len(piece)) if total is None else piece

    message = ""
    tracemalloc.start()
    try:
        header = gguf.parse_header(read, total, "it")
        list(header.tokens or ())[:1000]
    except ModelFileError as error:
        message = error.message
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert "\n" not in message
    assert len(message) < 500
    return peak


MUTATIONS = st.lists(
    st.tuples(
        st.integers(0, len(SMALL) - 1),
        st.one_of(
            st.binary(min_size=1, max_size=1),
            st.sampled_from(
                [
                    struct.pack("<Q", number)
                    for number in (0, 1, 2**16, 2**24, 2**25, 2**31, 2**32, 2**62, 2**63, 2**64 - 1)
                ]
            ),
        ),
    ),
    min_size=1,
    max_size=6,
)


MUTATED = {"mutations": MUTATIONS, "cut": st.integers(0, len(SMALL)), "endless": st.booleans()}


@settings(max_examples=100, suppress_health_check=list(HealthCheck))
@given(**MUTATED)
def test_mutated_headers_do_no_harm(
    mutations: list[tuple[int, bytes]], cut: int, endless: bool
) -> None:
    check_mutated(mutations, cut, endless)


@pytest.mark.slow
@pytest.mark.drawn
@settings(max_examples=5000, suppress_health_check=list(HealthCheck))
@given(**MUTATED)
def test_thousands_of_mutated_headers_do_no_harm(
    mutations: list[tuple[int, bytes]], cut: int, endless: bool
) -> None:
    check_mutated(mutations, cut, endless)


def check_mutated(mutations: list[tuple[int, bytes]], cut: int, endless: bool) -> None:
    data = bytearray(SMALL)
    for place, new in mutations:
        data[place : place + len(new)] = new
    bad = bytes(data[:cut] if cut % 3 == 0 else data)
    assert survives(bad, None if endless else len(bad)) < 100_000_000


@settings(max_examples=300)
@given(data=st.binary(max_size=300))
def test_random_bytes_do_no_harm(data: bytes) -> None:
    assert survives(b"GGUF\3\0\0\0" + data, None) < 100_000_000
    assert survives(data, len(data)) < 100_000_000


GROWTH = """
import sys
from localspec.errors import LocalspecError, ModelFileError
from localspec.pairs.gguf import header as gguf
from localspec import machine

data = sys.stdin.buffer.read()
before = machine.peak_resident()
try:
    gguf.parse_header(lambda at, size: data[at : at + size].ljust(size, b"\\0"), None, "it")
except ModelFileError:
    pass
print(machine.peak_resident() - before)
"""


def growth(data: bytes) -> int:
    """The bytes by which a process grows that parses `data` followed by endless zeros."""
    script = [sys.executable, "-c", GROWTH]
    done = subprocess.run(script, input=data, capture_output=True, check=True, timeout=60)
    return int(done.stdout)


@pytest.mark.few(1)
@pytest.mark.parametrize("element", [ggufs.STRING, ggufs.U8, ggufs.U64])
def test_the_largest_arrays_stay_within_the_bounds(element: int) -> None:
    width = 1 if element == ggufs.U8 else 8
    count = min(MAX_HEADER_BYTES // width - 100, gguf.MAX_STRINGS)
    start = counts(0, 1) + ggufs.text("tokenizer.ggml.tokens")
    assert growth(start + struct.pack("<IIQ", 9, element, count)) < 100_000_000


@pytest.mark.slow
def test_the_most_tensors_and_keys_stay_within_the_bounds() -> None:
    tensors = [ggufs.tensor(f"t{number}", [8], 0, 32 * number) for number in range(32_768)]
    keys = [(f"k{number}", ggufs.STRING, "") for number in range(16_384)]
    assert growth(ggufs.header(keys, tensors)) < 100_000_000


# --- words ------------------------------------------------------------------------------------


def test_strangers_words_become_one_harmless_line() -> None:
    assert one_line("a\x1b[31m\nb", 80) == "a␛[31m b"
    assert one_line("x" * 90, 80) == "x" * 79 + "…"
    error = LocalspecError(f"the model {'y' * 10**6}\x1b[2J\nis damaged", "\x9bRun this.")
    assert len(error.message) + len(error.remedy) <= 490
    assert error.message.startswith("the model yyy")
    assert error.message.endswith("yyy␛[2J is damaged")
    assert str(error) == error.message
    assert error.remedy == "\ufffdRun this."


def test_sizes_and_durations_read_well() -> None:
    assert [formats.size(n) for n in (0, 999, 1000, 4_680_000_000, 999_999_999, 2 * 10**12)] == [
        "0 bytes",
        "999 bytes",
        "1 kB",
        "4.68 GB",
        "1 GB",
        "2 TB",
    ]
    assert [formats.duration(s) for s in (0.4, 59, 200, 7500)] == [
        "0 s",
        "59 s",
        "3 min 20 s",
        "2 h 05 min",
    ]
