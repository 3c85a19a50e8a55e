#!/bin/sh
# torch_fresh.sh TORCH_TEST: makes cases that nobody has seen and runs TORCH_TEST on them. Exits with 77, which
# ctest calls skipped, where PyTorch is not there. UPWEAVE_PYTHON names the interpreter; UPWEAVE_TORCH_SEED
# repeats a run.
set -eu
python=${UPWEAVE_PYTHON:-python3}
if ! "$python" -c "import torch" 2>/dev/null; then
  echo "skipped: $python cannot import torch; UPWEAVE_PYTHON names another interpreter"
  exit 77
fi
cases=$(mktemp -d)
trap 'rm -rf "$cases"' EXIT
seed=${UPWEAVE_TORCH_SEED:-$(od -An -N4 -tu4 /dev/urandom | tr -d ' ')}
echo "UPWEAVE_TORCH_SEED=$seed repeats this run"
"$python" "$(dirname "$0")/make_torch_cases.py" --seed "$seed" --output "$cases"
UPWEAVE_TORCH_CASES=$cases/cases.jsonl "$1" --gtest_brief=1
