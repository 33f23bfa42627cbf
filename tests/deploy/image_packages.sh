#!/usr/bin/env bash
# The images install what the binaries link.
#   tests/deploy/image_packages.sh BIN_DIR
set -euo pipefail
bin=${1:?the folder of the binaries}
cd "$(dirname "$0")/../.."
for tool in dpkg-query objdump; do
  command -v "$tool" >/dev/null || { echo "skipped: no $tool here"; exit 77; }
done

# A file's package; which of /lib and /usr/lib dpkg calls its folder depends on the package.
owner() {
  dpkg-query -S "$1" 2>/dev/null || dpkg-query -S "${1#/usr}" 2>/dev/null || dpkg-query -S "/usr$1"
}

missing=0
for binary in sluice sluice-router sluice-prefill sluice-decode; do
  paths=$(ldd "$bin/$binary")
  for library in $(objdump -p "$bin/$binary" | awk '/NEEDED/ {print $2}'); do
    file=$(awk -v name="$library" '$1 == name {print $3}' <<<"$paths")
    [ -n "$file" ] || continue  # the loader
    case $(readlink -f "$file") in
      "$PWD"/build/ucx/* | */cuda*/*) continue ;;  # copied from the stages before
    esac
    package=$(owner "$(readlink -f "$file")" | head -1 | cut -d: -f1)
    case $package in
      libc6 | libgcc-s1) continue ;;  # always there
    esac
    for image in deploy/docker/Dockerfile.*; do
      # Of the last stage.
      awk '/^FROM/ {stage = ""} {stage = stage "\n" $0} END {print stage}' "$image" | grep -qwF -- "$package" ||
        { echo "$image: $binary links $library of $package"; missing=1; }
    done
  done
done
exit $missing
