#!/usr/bin/env bash
# The tests of `localspec train`, in an environment of its own that has torch for the processor
# alone. uv would fetch the build for CUDA, several gigabytes, where the registry has no other:
# pip is asked first what it would install.
set -euo pipefail
cd "$(dirname "$0")/.."

where=${LOCALSPEC_TRAIN_ENV:-$HOME/.cache/localspec-train}
[ -x "$where/bin/python" ] || python3 -m venv "$where"
wanted='torch==2.13.0'
if ! "$where/bin/python" -c 'import torch' 2>/dev/null; then
  found=$("$where/bin/pip" install --dry-run --quiet --report - "$wanted" 2>/dev/null || true)
  if [ -z "$found" ] || grep -qE '"name": "(nvidia|cuda)[^"]*"' <<<"$found"; then
    echo "no registry here has torch for the processor alone: the tests of training do not run" >&2
    exit "${1:+1}"
  fi
  "$where/bin/pip" install --quiet "$wanted"
fi
uv pip install --quiet --python "$where/bin/python" --editable . --group dev
LOCALSPEC_TORCH=1 "$where/bin/python" -m pytest -q tests/test_train.py "$@"
