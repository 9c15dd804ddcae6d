#!/usr/bin/env bash
# The tests of `localspec train`, where none of them may be skipped: in an environment of their own
# that has torch besides what uv's has. On Linux the usual build of torch is for CUDA, several
# gigabytes; so pip is asked first what it would install, and nothing is done unless it is a build
# for the processor alone. Arguments go to pytest.
set -euo pipefail
cd "$(dirname "$0")/.."

wanted=torch==2.13.0
where=${LOCALSPEC_TRAIN_ENV:-$HOME/.cache/localspec-train}
[ -x "$where/bin/pip" ] || uv run python -m venv "$where"
if ! "$where/bin/python" -c 'import torch' 2>/dev/null; then
  report=$("$where/bin/pip" install --dry-run --quiet --report - "$wanted" 2>/dev/null || true)
  if [ -z "$report" ] || grep -qE '"name": "(nvidia|cuda)' <<<"$report"; then
    echo "pip finds no torch for the processor alone here: the tests of training do not run" >&2
    exit 0
  fi
  "$where/bin/pip" install --quiet "$wanted"
fi
purelib='import sysconfig; print(sysconfig.get_path("purelib"))'
{ uv run python -c "$purelib"; pwd; } >"$("$where/bin/python" -c "$purelib")/localspec.pth"
LOCALSPEC_TORCH=1 "$where/bin/python" -m pytest -q -n logical --dist worksteal tests/test_train.py "$@"
