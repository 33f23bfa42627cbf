#include <cstdlib>

#include "common/compression/retention/retention_policy.h"

namespace sluice {

// Every retention method, each in the file of its name.
const RetentionPolicy& FullRetention();
const RetentionPolicy& SnapKvRetention();
const RetentionPolicy& StreamingLlmRetention();

const RetentionPolicy& RetentionPolicyOf(RetentionKind kind) {
  switch (kind) {
    case RetentionKind::kFull:
      return FullRetention();
    case RetentionKind::kSnapKv:
      return SnapKvRetention();
    case RetentionKind::kStreamingLlm:
      return StreamingLlmRetention();
  }
  std::abort();  // no such kind
}

}  // namespace sluice
