#!/usr/bin/env bash
# Starts `sluice up` and a Prometheus on this machine, puts a load on them, and takes a picture of each board as view/
# draws it: pictures/*.png. Needs Debian's prometheus, chromium and pngquant.
#   deploy/dashboards/take_pictures.sh [BIN_DIR] [MINUTES_OF_LOAD]
set -euo pipefail
cd "$(dirname "$0")/../.."
bin=${1:-build/cpu-release/bin} minutes=${2:-6} ports=7400 prometheus=127.0.0.1:7419 page=127.0.0.1:7418
for program in prometheus chromium pngquant; do
  command -v $program >/dev/null || { echo "needs $program: apt-get install $program" >&2; exit 1; }
done
work=$(mktemp -d)
pids=()
trap 'kill "${pids[@]}" 2>/dev/null || true; wait; rm -rf "$work"' EXIT

sed -e "s/127.0.0.1:71/127.0.0.1:74/; s/_interval: .*/_interval: 2s/" deploy/prometheus/prometheus.yml \
  >"$work/prometheus.yml"
cp deploy/prometheus/{recording,alerts}.yml "$work"
"$bin/sluice" up --model models/needle-14m --port-base $ports --shadow-rate 0.3 --log-dir "$work" >"$work/up.log" 2>&1 &
pids+=($!)
prometheus --config.file="$work/prometheus.yml" --storage.tsdb.path="$work/data" --web.listen-address=$prometheus \
  --log.level=warn >"$work/prometheus.log" 2>&1 &
pids+=($!)
python3 -m http.server --bind "${page%:*}" --directory deploy/dashboards "${page#*:}" >/dev/null 2>&1 &
pids+=($!)
timeout 120 sh -c "until grep -q '^ready' '$work/up.log'; do sleep 0.5; done"
sleep 5

# Sessions and single requests at once, two presets one after the other; now and then somebody who goes away.
bench() {
  exec "$bin/sluice" bench --router 127.0.0.1:$ports --output-tokens 48 --budget 256 "$@" >>"$work/load.log" 2>&1
}
seconds=$((minutes * 60))
bench --rate 0.6 --prompt-tokens 1800 --preset full,rocketkv,sluice --duration $((seconds / 3 + 20)) &
pids+=($!)
bench --concurrency 2 --prompt-tokens 2400 --turns 4 --preset rocketkv-mt,sluice-mt --duration $((seconds / 2 + 30)) &
pids+=($!)
end=$((SECONDS + seconds))
while [ $SECONDS -lt $end ]; do
  timeout -s INT 6 "$bin/sluice" bench --router 127.0.0.1:$ports --prompt-tokens 3000 --output-tokens 400 --requests 1 \
    >/dev/null 2>&1 || true
  "$bin/sluice" complete --router 127.0.0.1:$ports "Short" --max-tokens 4 >/dev/null 2>&1 || true
  sleep 9
done

now=$(date +%s)
mkdir -p deploy/dashboards/pictures
for board in overview prefill decode transfer sessions hosts; do
  height=$(python3 -c "import json; print(max(p['gridPos']['y'] + p['gridPos']['h'] for p in json.load(open(
    'deploy/dashboards/$board.json'))['panels']) * 35 + 75)")
  chromium --headless --no-sandbox --disable-gpu --hide-scrollbars --user-data-dir="$work/chromium" \
    --virtual-time-budget=60000 --window-size=1400,"$height" --screenshot="$work/$board.png" \
    "http://$page/view/?board=$board&prometheus=http://$prometheus&minutes=$((minutes + 1))&rate=20s&end=$now" \
    2>"$work/chromium.log"
  pngquant --force --speed 1 --output "deploy/dashboards/pictures/$board.png" 64 "$work/$board.png"
done
ls -l deploy/dashboards/pictures
