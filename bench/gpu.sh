#!/bin/sh
# bench/gpu.sh [build folder] [options of gpu.py]: the CUDA engine on this machine's GPU. First every test case, each run
# twice and compared bit for bit; then small cases under compute-sanitizer, where there is one; then the five pipelines
# against float64 and beside PyTorch. Needs the library and the test built (make), PyTorch, and NVRTC (UPWEAVE_NVRTC).
set -eu
cd "$(dirname "$0")/.."
build=${1:-build}
[ $# -eq 0 ] || shift
test=$(find "$build" -name cuda_engine_test -type f | head -1)
library=$(find "$build" -name 'libupweave.so*' -type f | head -1)
if [ -z "$test" ] || [ -z "$library" ]; then
  echo "$build has no cuda_engine_test and libupweave.so: build them first (make)" >&2
  exit 1
fi
"$test" --gtest_brief=1
if command -v compute-sanitizer > /dev/null; then
  for tool in memcheck racecheck synccheck; do
    compute-sanitizer --tool $tool --error-exitcode 9 "$test" --gtest_brief=1 \
      --gtest_filter='*sum_layernorm_f32_fast*:*softmax_f32_strict_normal*:*batchnorm_f32_fast*'
  done
fi
python3 bench/gpu.py --library "$library" "$@"
