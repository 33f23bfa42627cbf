#!/usr/bin/env bash
# Prints deploy/sluice.toml: every option of every server, as the binaries say.
#   deploy/sample_config.sh build/cpu-release/bin > deploy/sluice.toml
set -euo pipefail
bin=${1:?the folder of the binaries, such as build/cpu-release/bin}
cat <<'END'
# Sluice: every option of every server with its default, printed by deploy/sample_config.sh.
#
# Each server reads what stands before the first section, and its own section: --config FILE or SLUICE_CONFIG. A flag
# goes before the environment (the name in brackets), the environment before this file. What all of them share, such as
# the model, is best written here:

# model = "/models/model"
END
# Not what this shell's environment sets.
for name in router prefill decode; do
  echo
  env -i "$bin/sluice-$name" --print-config
done
