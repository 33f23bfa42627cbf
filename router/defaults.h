// Role: what requests get that leave it unset, while the router runs. Why it exists: an operator changes it
// without a restart; a request sees one state of it. Threads: any; one lock.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/base/mutex.h"
#include "sluice/v1/admin.pb.h"

namespace sluice {

inline constexpr char kSinglePreset[] = "sluice";
inline constexpr char kSessionPreset[] = "sluice-mt";

// Above the presets' observation window, so that no request is refused for a budget it did not ask for.
inline constexpr int kLeastBudget = 64;

struct RequestDefaults {
  std::string preset = kSinglePreset;  // of single requests
  std::string session_preset =
      kSessionPreset;     // of a session's first turn; its later ones get the first one's
  int budget_tokens = 0;  // 0: the preset's own
  absl::Duration timeout = absl::Minutes(10);
};

class Defaults {
 public:
  explicit Defaults(RequestDefaults values) : values_(std::move(values)) {}

  RequestDefaults Get() const {
    MutexLock lock(&mu_);
    return values_;
  }
  // What is set replaces what there is. InvalidArgument names the field; then nothing has changed.
  absl::Status Set(const v1::SetDefaultsRequest& request);

 private:
  mutable Mutex mu_;
  RequestDefaults values_ ABSL_GUARDED_BY(mu_);
};

}  // namespace sluice
