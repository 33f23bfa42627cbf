#!/usr/bin/env bash
# Installs what building and running Sluice needs on Debian 12. Quiet and idempotent: does nothing when all is there.
#   deploy/install_packages.sh [--tests]   --tests: and the servers and linters that tests run
set -euo pipefail
cd "$(dirname "$0")/.."

packages=(
  g++ cmake ninja-build ccache pkg-config git ca-certificates python3
  libgrpc++-dev libprotobuf-dev protobuf-compiler protobuf-compiler-grpc libabsl-dev
  prometheus-cpp-dev libucx-dev libcli11-dev libspdlog-dev libfmt-dev nlohmann-json3-dev
  libboost-dev libpcre2-dev libutf8proc-dev libssl-dev libsqlite3-dev libpq-dev libgtest-dev libgmock-dev
  libbenchmark-dev
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

installed() { dpkg-query -W -f='${db:Status-Status}' "$1" 2>/dev/null | grep -qx installed; }
missing=()
for package in "${packages[@]}"; do installed "$package" || missing+=("$package"); done
servers=()
if [ "${1:-}" = --tests ]; then
  for package in postgresql prometheus shellcheck yamllint python3-pip; do
    installed "$package" || servers+=("$package")
  done
fi
[ ${#missing[@]} -gt 0 ] || [ ${#servers[@]} -gt 0 ] || { fetch_ucx; exit 0; }

run=()
if [ "$(id -u)" -ne 0 ]; then
  if ! command -v sudo >/dev/null; then
    [ ${#missing[@]} -gt 0 ] || { echo "not root: without ${servers[*]} some tests are skipped" >&2; fetch_ucx; exit 0; }
    echo "install these packages as root, then run again: ${missing[*]}" >&2
    exit 1
  fi
  run=(sudo)
fi
apt() { "${run[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -qq -o Acquire::http::Timeout=30 -o Acquire::Retries=2 "$@"; }
apt_install() { [ $# -eq 0 ] || apt install -y --no-install-recommends "$@"; }
# Tests start servers of their own: what comes with a daemon leaves it neither running nor enabled.
install_servers() {
  local policy=/usr/sbin/policy-rc.d made='' failed=''
  [ -e $policy ] || made=yes
  [ -z "$made" ] || { printf '#!/bin/sh\nexit 101\n' | "${run[@]}" tee $policy && "${run[@]}" chmod +x $policy; }
  apt_install "$@" || failed=yes
  [ -z "$made" ] || "${run[@]}" rm $policy
  [ -z "$failed" ] || return 1
  for package in "$@"; do "${run[@]}" systemctl -q disable "$package" || true; done
}
echo "installing $((${#missing[@]} + ${#servers[@]})) Debian packages"
log=$(mktemp)
if ! { apt update && apt_install "${missing[@]}"; } >"$log" 2>&1; then
  tail -20 "$log" >&2
  echo "apt-get failed; the whole log is $log" >&2
  exit 1
fi
[ ${#servers[@]} -eq 0 ] || install_servers "${servers[@]}" >>"$log" 2>&1 || echo "without ${servers[*]} some tests are skipped" >&2
rm -f "$log"
fetch_ucx
