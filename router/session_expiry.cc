#include "router/session_expiry.h"

#include <spdlog/spdlog.h>

#include <optional>
#include <string>
#include <vector>

#include "router/history_release.h"

namespace sluice {
namespace {

constexpr int kBatch = 100;

// False: it stays, for now.
absl::StatusOr<bool> Expire(const RunServices& services, const Session& session, int64_t updated_before) {
  std::optional<BusySession> busy = BusySession::Enter(services.busy_sessions, session.id);
  if (!busy.has_value()) return false;
  const HistoryRelease history(services, session);
  absl::StatusOr<std::optional<std::vector<std::string>>> dropped =
      services.store->DeleteIdle(session.id, updated_before);
  if (!dropped.ok()) return dropped.status();
  if (!dropped->has_value()) return false;
  history.Release(**dropped);
  return true;
}

}  // namespace

void ExpireSessions(const RunServices& services, int64_t updated_before_unix_ms) {
  int expired = 0;
  for (;;) {
    absl::StatusOr<std::vector<Session>> idle = services.store->Idle(updated_before_unix_ms, kBatch);
    absl::Status status = idle.status();
    int gone = 0;
    for (size_t i = 0; status.ok() && i < idle->size(); ++i) {
      absl::StatusOr<bool> went = Expire(services, (*idle)[i], updated_before_unix_ms);
      status = went.status();
      if (went.ok() && *went) ++gone;
    }
    expired += gone;
    if (!status.ok()) spdlog::warn("sessions not expired error=\"{}\"", std::string(status.message()));
    if (!status.ok() || gone == 0 || idle->size() < kBatch) break;
  }
  if (expired > 0) spdlog::info("sessions expired count={}", expired);
}

}  // namespace sluice
