// Role: tells the prefill worker that holds a session's history which turns are no more, so that their KV
// goes before memory is short. Why it exists: sessions are cut, deleted and expire in three places. A worker
// that does not hear of it loses nothing: its own eviction comes later. Threads: any that may block on the
// store.
#pragma once

#include <string>
#include <vector>

#include "absl/types/span.h"
#include "router/run_services.h"
#include "sluice/internal/v1/worker.pb.h"

namespace sluice {

// path: of the session, before turns were dropped. dropped: its last turns, first to last.
internal::v1::ForgetRequest ForgetRequestOf(const std::string& owner, absl::Span<const Turn> path,
                                            absl::Span<const std::string> dropped);

class HistoryRelease {
 public:
  // Before the change: reads the path. What cannot be read is not released.
  HistoryRelease(const RunServices& services, const Session& session);
  // After it. Returns at once; the worker is told in the background.
  void Release(const std::vector<std::string>& dropped) const;

 private:
  const RunServices& services_;
  const std::string owner_;
  std::string address_;  // empty: no ready worker has the session's history
  std::vector<Turn> path_;
};

}  // namespace sluice
