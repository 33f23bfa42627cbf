#include "router/defaults.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status.h"
#include "common/compression/compression_spec.h"
#include "common/rpc/status_codec.h"

namespace sluice {
namespace {

constexpr int kMostBudget = 1 << 24;

absl::Status CheckPreset(absl::string_view field, const std::string& name) {
  const absl::Span<const Preset> presets = Presets();
  const bool known =
      std::any_of(presets.begin(), presets.end(), [&](const Preset& preset) { return name == preset.name; });
  if (known) return absl::OkStatus();
  const auto append = [](std::string* out, const Preset& preset) { out->append(preset.name); };
  return BadField(field,
                  absl::StrCat("unknown \"", name, "\"; known are ", absl::StrJoin(presets, ", ", append)));
}

}  // namespace

absl::Status Defaults::Set(const v1::SetDefaultsRequest& request) {
  if (request.has_preset()) SLUICE_RETURN_IF_ERROR(CheckPreset("preset", request.preset()));
  if (request.has_session_preset()) {
    SLUICE_RETURN_IF_ERROR(CheckPreset("session_preset", request.session_preset()));
  }
  const int budget = request.budget_tokens();
  if (budget != 0 && (budget < kLeastBudget || budget > kMostBudget)) {
    return BadField("budget_tokens",
                    absl::StrCat(budget, " is not 0 or in [", kLeastBudget, ", ", kMostBudget, "]"));
  }
  const double timeout = request.timeout_seconds();
  if (request.has_timeout_seconds() && !(timeout >= 0.001 && timeout <= 1e6)) {
    return BadField("timeout_seconds", absl::StrCat(timeout, " is not in [0.001, 1000000]"));
  }
  MutexLock lock(&mu_);
  if (request.has_preset()) values_.preset = request.preset();
  if (request.has_session_preset()) values_.session_preset = request.session_preset();
  if (request.has_budget_tokens()) values_.budget_tokens = budget;
  if (request.has_timeout_seconds()) values_.timeout = absl::Seconds(timeout);
  return absl::OkStatus();
}

}  // namespace sluice
