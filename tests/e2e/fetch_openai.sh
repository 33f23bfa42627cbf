#!/usr/bin/env bash
# Puts OpenAI's Python client into build/openai, from PyPI, for openai_client_test.py. Quiet and idempotent; without it
# that test is skipped.
set -euo pipefail
cd "$(dirname "$0")/../.."
package=openai==3.57.0
[ -e "build/openai/$package" ] && exit 0
if ! python3 -m pip --version >/dev/null 2>&1; then
  echo "without python3-pip the test of OpenAI's client is skipped" >&2
  exit 0
fi
echo "fetching $package"
rm -rf build/openai
if timeout 300 python3 -m pip install --quiet --disable-pip-version-check --root-user-action ignore --no-warn-conflicts \
  --target build/openai "$package" >/dev/null 2>&1; then
  touch "build/openai/$package"
else
  rm -rf build/openai
  echo "without $package the test of OpenAI's client is skipped" >&2
fi
