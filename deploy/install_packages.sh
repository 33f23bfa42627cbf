#!/usr/bin/env bash
# Installs what building and running Sluice needs on Debian 12. Quiet and idempotent: does nothing when all is there.
set -euo pipefail

packages=(
  g++ cmake ninja-build ccache pkg-config git ca-certificates python3
  libgrpc++-dev libprotobuf-dev protobuf-compiler protobuf-compiler-grpc libabsl-dev
  prometheus-cpp-dev libucx-dev libcli11-dev libspdlog-dev libfmt-dev nlohmann-json3-dev
  libpcre2-dev libutf8proc-dev libsqlite3-dev libgtest-dev libgmock-dev libbenchmark-dev
)

missing=()
for package in "${packages[@]}"; do
  dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null | grep -qx installed || missing+=("$package")
done
[ ${#missing[@]} -eq 0 ] && exit 0

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
