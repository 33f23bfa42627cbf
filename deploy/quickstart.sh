#!/usr/bin/env bash
# Installs, builds, starts router + prefill + decode on this machine and holds a real conversation over a long document.
#   deploy/quickstart.sh [--model needle-14m|smollm2|qwen-0.5b|PATH] [--keep-running]
# Exits 1 when a turn fails, or when the bundled model answers wrong. A general chat model (smollm2, qwen-0.5b, PATH)
# gets a shorter text, and may be unsure about it.
set -euo pipefail
cd "$(dirname "$0")/.."

model=needle-14m
keep=
while [ $# -gt 0 ]; do
  case $1 in
    --model) model=${2:?--model needs needle-14m, smollm2, qwen-0.5b or a path}; shift 2 ;;
    --keep-running) keep=1; shift ;;
    *) echo "unknown option $1; see the top of $0" >&2; exit 2 ;;
  esac
done

bash deploy/install_packages.sh
build=build/cpu-release
mkdir -p "$build"
. deploy/step.sh
[ -f "$build/build.ninja" ] || step "configuring" "$build/configure.log" cmake --preset cpu-release
step "building (the first time takes minutes)" "$build/build.log" \
  cmake --build "$build" --target sluice-router sluice-prefill sluice-decode sluice

kind=--chat-model
case $model in
  needle-14m) path=models/needle-14m kind= ;;
  smollm2 | qwen-0.5b) path=$(bash deploy/fetch_model.sh "$model") ;;
  *) path=$model ;;
esac

run=$(mktemp -d)
"$build/bin/sluice" up --model "$path" --port-base 7300 --log-dir "$run" >"$run/up.log" 2>&1 &
up=$!
stop() {
  kill -TERM "$up" 2>/dev/null || true
  wait "$up" 2>/dev/null || true
  rm -rf "$run"
}
trap stop EXIT
trap 'exit 130' INT TERM
for _ in $(seq 3000); do
  grep -q '^ready' "$run/up.log" && break
  kill -0 "$up" 2>/dev/null || { cat "$run/up.log" >&2; echo "sluice up ended early" >&2; exit 1; }
  sleep 0.1
done
grep -q '^ready' "$run/up.log" || { cat "$run/up.log" >&2; echo "not ready after 300 s" >&2; exit 1; }
devices=$(sed -n 's/^model .*, \(prefill on .*, decode on [^,]*\),.*/\1/p' "$run/up.log" | head -1)
echo "serving $path: $devices; router, prefill and decode are three processes, KV goes over UCX"

python3 deploy/quickstart_chat.py --sluice "$build/bin/sluice" --router 127.0.0.1:7300 \
  --haystack models/needle-14m/haystack.txt ${kind:+"$kind"}
if [ -n "$keep" ]; then
  echo "still serving; talk to it with: $build/bin/sluice chat --router 127.0.0.1:7300   (Ctrl-C here stops it)"
  wait "$up"
fi
