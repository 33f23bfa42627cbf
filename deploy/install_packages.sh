#!/usr/bin/env bash
# Installs what building and running Sluice needs on Debian 12. Quiet and idempotent: does nothing when all is there.
set -euo pipefail
cd "$(dirname "$0")/.."

packages=(
  g++ cmake ninja-build ccache pkg-config git ca-certificates python3
  libgrpc++-dev libprotobuf-dev protobuf-compiler protobuf-compiler-grpc libabsl-dev
  prometheus-cpp-dev libucx-dev libcli11-dev libspdlog-dev libfmt-dev nlohmann-json3-dev
  libpcre2-dev libutf8proc-dev libsqlite3-dev libgtest-dev libgmock-dev libbenchmark-dev
)

# Where nvcc is: a UCX that reaches GPU memory, for the preset cuda-release. Debian's does not.
ucx=
if command -v nvcc >/dev/null || [ -x "${CUDA_HOME:-/usr/local/cuda}/bin/nvcc" ]; then
  [ -e build/ucx/libucx/lib/cmake/ucx/ucx-config.cmake ] || ucx=libucx-cu13==1.22.0
  [ -z "$ucx" ] || python3 -m pip --version >/dev/null 2>&1 || packages+=(python3-pip)
fi
fetch_ucx() {
  [ -n "$ucx" ] || return 0
  echo "fetching $ucx"
  python3 -m pip install --quiet --disable-pip-version-check --no-deps --target build/ucx "$ucx" ||
    echo "without it, KV between GPUs goes through host memory" >&2
}

missing=()
for package in "${packages[@]}"; do
  dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null | grep -qx installed || missing+=("$package")
done
[ ${#missing[@]} -gt 0 ] || { fetch_ucx; exit 0; }

run=()
if [ "$(id -u)" -ne 0 ]; then
  command -v sudo >/dev/null || { echo "install these packages as root, then run again: ${missing[*]}" >&2; exit 1; }
  run=(sudo)
fi
echo "installing ${#missing[@]} Debian packages"
log=$(mktemp)
if ! { "${run[@]}" apt-get update -qq && DEBIAN_FRONTEND=noninteractive "${run[@]}" apt-get install -y -qq \
    --no-install-recommends "${missing[@]}"; } >"$log" 2>&1; then
  tail -20 "$log" >&2
  echo "apt-get failed; the whole log is $log" >&2
  exit 1
fi
rm -f "$log"
fetch_ucx
