#!/usr/bin/env bash
# run.py with the packages that it needs, fetched from PyPI into build/eval/packages where they are missing.
#   bash tests/eval/run.sh --router 127.0.0.1:7100 ...
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
packages=$here/../../build/eval/packages
export PYTHONPATH=$packages${PYTHONPATH:+:$PYTHONPATH}
if ! python3 -c 'import grpc, grpc_tools, matplotlib, numpy, tokenizers, tqdm' 2>/dev/null; then
  python3 -m pip --version >/dev/null 2>&1 || { echo "install python3-pip, then run again" >&2; exit 1; }
  echo "fetching the lab's packages" >&2
  python3 -m pip install --quiet --disable-pip-version-check --upgrade --target "$packages" -r "$here/requirements.txt"
fi
exec python3 "$here/run.py" "$@"
