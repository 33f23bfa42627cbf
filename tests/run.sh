#!/usr/bin/env bash
# Installs, builds, runs all tests.
#   tests/run.sh [--preset cpu-release|cpu-debug|cuda-release|asan|tsan] [ctest arguments]
set -euo pipefail
cd "$(dirname "$0")/.."

preset=cpu-release
if [ "${1:-}" = --preset ]; then
  preset=${2:?--preset needs a name}
  shift 2
fi

bash deploy/install_packages.sh --tests
bash tests/e2e/fetch_openai.sh
build=build/$preset
mkdir -p "$build"
. deploy/step.sh
step "configuring ($preset)" "$build/configure.log" cmake --preset "$preset"
step "building" "$build/build.log" cmake --build "$build"
# A test asks for more memory than there is.
export ASAN_OPTIONS=${ASAN_OPTIONS:-detect_leaks=1:allocator_may_return_null=1}
export TSAN_OPTIONS=${TSAN_OPTIONS:-suppressions=$PWD/tests/tsan.suppressions:allocator_may_return_null=1}
# UCX's hooks on memory calls run when a thread has ended for TSan already, which crashes it.
[ "$preset" = tsan ] && export UCX_MEM_EVENTS=no
ctest --test-dir "$build" --output-on-failure --progress -j "$(nproc)" "$@"
