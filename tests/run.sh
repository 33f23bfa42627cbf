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

bash deploy/install_packages.sh
build=build/$preset
mkdir -p "$build"
step() {
  local what=$1 log=$build/$2.log
  shift 2
  echo "$what"
  if ! "$@" >"$log" 2>&1; then
    tail -40 "$log" >&2
    echo "$what failed; the whole log is $log" >&2
    exit 1
  fi
}
step "configuring ($preset)" configure cmake --preset "$preset"
step "building" build cmake --build "$build"
# A test asks for more memory than there is.
export ASAN_OPTIONS=${ASAN_OPTIONS:-detect_leaks=1:allocator_may_return_null=1}
export TSAN_OPTIONS=${TSAN_OPTIONS:-suppressions=$PWD/tests/tsan.suppressions:allocator_may_return_null=1}
# UCX's hooks on memory calls run when a thread has ended for TSan already, which crashes it.
[ "$preset" = tsan ] && export UCX_MEM_EVENTS=no
ctest --test-dir "$build" --output-on-failure --progress -j "$(nproc)" "$@"
