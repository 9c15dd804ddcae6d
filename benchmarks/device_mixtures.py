"""What random mixtures of experts take of a device: by the plan, and by llama.cpp's log.

    tests/device.sh                                            # builds the libraries, once
    GGML_VK_VISIBLE_DEVICES=0 LLAMA_CPP_LIB_PATH=~/.cache/localspec-vulkan/VERSION \
        uv run python -m benchmarks.device_mixtures            # two minutes on two cores

The models are the large ones of `tests/test_device.py`, with a context of 4,096 tokens and flash
attention. They are loaded with the experts of no, half and all layers on the processor; nothing is
computed. Prints a table in Markdown, in MiB on the first device: planned, and taken by llama.cpp.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from localspec.engine.llama import devices
from localspec.loading.load_request import LoadRequest
from tests.support.any_model import write_any
from tests.support.buffers import compared

LAYERS, EXPERTS = 8, 64
MIXTURES = {"qwen3moe": 0, "gpt-oss": 0, "lfm2moe": 0, "gemma4": 0, "qwen35moe": 1, "glm4moe": 1}
MIB = 1 << 20


def line(path: Path, moved: int, label: str) -> str:
    """The row of a placement."""
    request = LoadRequest(
        pair=str(path),
        draft="mtp" if MIXTURES[path.stem] else "none",
        device=(label,),
        ctx_size=4096,
        threads=1,
        flash_attn="on",
        n_cpu_moe=moved,
        scan=False,
    )
    planned, taken = compared(request, label)
    cells = [
        f"{getattr(planned, part) / MIB:.2f}, {getattr(taken, part) / MIB:.2f}"
        for part in ("weights", "cache", "compute", "total")
    ]
    return f"| {path.stem} | {moved} | {' | '.join(cells)} |"


def main() -> None:
    """Print the table."""
    label = devices()[0].label
    print("| mixture | experts on the processor | weights | cache | buffers | all |")
    print("|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for name, nextn in MIXTURES.items():
            path = Path(folder) / f"{name}.gguf"
            write_any(path, name, layers=LAYERS - nextn, nextn=nextn, experts=EXPERTS)
            for moved in (0, LAYERS // 2, LAYERS):
                print(line(path, moved, label), flush=True)


if __name__ == "__main__":
    main()
