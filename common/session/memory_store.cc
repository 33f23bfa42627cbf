#include "common/session/memory_store.h"

#include <algorithm>
#include <set>
#include <tuple>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "common/base/mutex.h"
#include "common/base/random_id.h"
#include "common/base/status.h"
#include "common/session/session_rules.h"
#include "common/session/turn_ids.h"

namespace sluice {
namespace {

struct TurnNode {
  Turn turn;
  int holders = 0;  // child turns, and sessions whose head this is
  int64_t bytes = 0;
};

class MemoryStore final : public SessionStore {
 public:
  explicit MemoryStore(const SessionLimits& limits) : limits_(limits) {}

  absl::StatusOr<Session> Create(const NewSession& fresh) override {
    SLUICE_ASSIGN_OR_RETURN(Session session, SessionOf(fresh));
    MutexLock lock(&mu_);
    return Insert(std::move(session));
  }

  absl::StatusOr<Session> Get(absl::string_view owner, absl::string_view session_id) override {
    MutexLock lock(&mu_);
    const Session* session = Owned(owner, session_id);
    if (session == nullptr) return SessionNotFound(session_id);
    return *session;
  }

  absl::StatusOr<SessionPage> List(absl::string_view owner, absl::string_view page_token,
                                   int page_size) override {
    if (absl::Status status = CheckPageSize(page_size); !status.ok()) return status;
    absl::StatusOr<PageCursor> cursor = DecodePageToken(page_token);
    if (!cursor.ok()) return cursor.status();
    MutexLock lock(&mu_);
    SessionPage page;
    auto mine = by_owner_.find(owner);
    if (mine == by_owner_.end()) return page;
    const AgeOrder& order = mine->second.by_age;
    auto it =
        page_token.empty() ? order.end() : order.lower_bound({cursor->created_unix_ms, cursor->session_id});
    while (it != order.begin()) {
      if (page.sessions.size() == static_cast<size_t>(page_size)) {
        page.next_page_token = EncodePageToken(page.sessions.back());
        break;
      }
      --it;
      page.sessions.push_back(sessions_.at(it->second));
    }
    return page;
  }

  absl::StatusOr<std::vector<std::string>> Delete(absl::string_view owner,
                                                  absl::string_view session_id) override {
    MutexLock lock(&mu_);
    const Session* session = Owned(owner, session_id);
    if (session == nullptr) return SessionNotFound(session_id);
    return Erase(*session);
  }

  absl::StatusOr<Session> Fork(absl::string_view owner, absl::string_view session_id,
                               absl::string_view turn_id, int64_t created_unix_ms) override {
    MutexLock lock(&mu_);
    const Session* source = Owned(owner, session_id);
    if (source == nullptr) return SessionNotFound(session_id);
    Session fork = *source;
    if (!turn_id.empty()) {
      if (!OnPath(*source, turn_id)) return TurnNotOnPath(turn_id, session_id);
      SetHead(turn_id, &fork);
    }
    fork.id = RandomId128();
    fork.created_unix_ms = fork.updated_unix_ms = created_unix_ms;
    return Insert(std::move(fork));
  }

  absl::StatusOr<Truncated> Truncate(absl::string_view owner, absl::string_view session_id,
                                     absl::string_view turn_id, int64_t updated_unix_ms) override {
    MutexLock lock(&mu_);
    if (Owned(owner, session_id) == nullptr) return SessionNotFound(session_id);
    Session& session = sessions_.find(session_id)->second;
    if (!OnPath(session, turn_id)) return TurnNotOnPath(turn_id, session_id);
    const std::string old_head = session.head_turn_id;
    SetHead(turn_id, &session);
    session.updated_unix_ms = updated_unix_ms;
    ++turns_.at(session.head_turn_id).holders;
    return Truncated{session, Release(session.owner, old_head)};
  }

  absl::Status CheckRoom(absl::string_view owner) override {
    MutexLock lock(&mu_);
    auto mine = by_owner_.find(owner);
    const int64_t bytes = mine == by_owner_.end() ? 0 : mine->second.bytes;
    if (bytes < limits_.max_bytes_per_owner) return absl::OkStatus();
    return TooManyBytes(owner, bytes, limits_.max_bytes_per_owner);
  }

  absl::Status CommitTurn(absl::string_view session_id, absl::string_view expected_parent_turn_id,
                          const Turn& turn, absl::string_view compression_json) override {
    if (absl::Status status = CheckTurn(turn); !status.ok()) return status;
    MutexLock lock(&mu_);
    auto found = sessions_.find(session_id);
    if (found == sessions_.end()) return SessionNotFound(session_id);
    Session& session = found->second;
    if (session.head_turn_id != expected_parent_turn_id) {
      return StaleParent(expected_parent_turn_id, session.head_turn_id);
    }
    if (turns_.contains(turn.id)) return TurnExists(turn.id);
    // The session's hold on the parent becomes the new turn's.
    TurnNode node{turn, 1, TurnBytes(turn, SharedIds(IdsUpTo(session.head_turn_id), turn.prompt_ids))};
    node.turn.session_id = session.id;
    node.turn.parent_turn_id = session.head_turn_id;
    node.turn.index = session.turns;
    by_owner_.at(session.owner).bytes += node.bytes;
    turns_.emplace(turn.id, std::move(node));
    SetHead(turn.id, &session);
    session.updated_unix_ms = turn.created_unix_ms;
    if (!compression_json.empty()) session.compression_json = std::string(compression_json);
    return absl::OkStatus();
  }

  absl::StatusOr<std::vector<Turn>> Path(absl::string_view session_id, absl::string_view turn_id) override {
    MutexLock lock(&mu_);
    auto found = sessions_.find(session_id);
    if (found == sessions_.end()) return SessionNotFound(session_id);
    const Session& session = found->second;
    if (!turn_id.empty() && !OnPath(session, turn_id)) return TurnNotOnPath(turn_id, session_id);
    std::vector<Turn> path;
    std::string at = turn_id.empty() ? session.head_turn_id : std::string(turn_id);
    for (; !at.empty(); at = path.back().parent_turn_id) path.push_back(turns_.at(at).turn);
    std::reverse(path.begin(), path.end());
    return path;
  }

  absl::StatusOr<bool> SetHome(absl::string_view session_id, const std::optional<SessionHome>& expected,
                               const std::optional<SessionHome>& home) override {
    MutexLock lock(&mu_);
    auto found = sessions_.find(session_id);
    if (found == sessions_.end()) return SessionNotFound(session_id);
    if (found->second.home != expected) return false;
    found->second.home = home;
    return true;
  }

  absl::StatusOr<std::vector<Session>> Idle(int64_t updated_before_unix_ms, int limit) override {
    MutexLock lock(&mu_);
    std::vector<Session> idle;
    for (const auto& [id, session] : sessions_) {
      if (session.updated_unix_ms < updated_before_unix_ms) idle.push_back(session);
    }
    std::sort(idle.begin(), idle.end(), [](const Session& a, const Session& b) {
      return std::tie(a.updated_unix_ms, a.id) < std::tie(b.updated_unix_ms, b.id);
    });
    if (idle.size() > static_cast<size_t>(limit)) idle.resize(limit);
    return idle;
  }

  absl::StatusOr<std::optional<std::vector<std::string>>> DeleteIdle(
      absl::string_view session_id, int64_t updated_before_unix_ms) override {
    MutexLock lock(&mu_);
    auto found = sessions_.find(session_id);
    if (found == sessions_.end() || found->second.updated_unix_ms >= updated_before_unix_ms) {
      return std::optional<std::vector<std::string>>();
    }
    return std::optional<std::vector<std::string>>(Erase(found->second));
  }

  absl::StatusOr<SessionTotals> Totals() override {
    MutexLock lock(&mu_);
    SessionTotals totals{static_cast<int64_t>(sessions_.size()), 0};
    for (const auto& [owner, holdings] : by_owner_) totals.bytes += holdings.bytes;
    return totals;
  }

 private:
  using AgeOrder = std::set<std::pair<int64_t, std::string>>;  // (created, id), oldest first
  struct Holdings {                                            // of one owner, while it has sessions
    AgeOrder by_age;
    int64_t bytes = 0;
  };

  const Session* Owned(absl::string_view owner, absl::string_view session_id) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    auto found = sessions_.find(session_id);
    return found == sessions_.end() || found->second.owner != owner ? nullptr : &found->second;
  }

  bool OnPath(const Session& session, absl::string_view turn_id) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    absl::string_view at = session.head_turn_id;
    while (!at.empty() && at != turn_id) at = turns_.at(at).turn.parent_turn_id;
    return !at.empty();
  }

  void SetHead(absl::string_view turn_id, Session* session) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    session->head_turn_id = std::string(turn_id);
    session->turns = turns_.at(turn_id).turn.index + 1;
  }

  // The turn's prompt and emitted ids; none for an empty id.
  std::vector<int32_t> IdsUpTo(const std::string& turn_id) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (turn_id.empty()) return {};
    const Turn& turn = turns_.at(turn_id).turn;
    std::vector<int32_t> ids = turn.prompt_ids;
    ids.insert(ids.end(), turn.emitted_ids.begin(), turn.emitted_ids.end());
    return ids;
  }

  // Lets go of a session's hold on its old head; the turns dropped by that, first to last.
  std::vector<std::string> Release(const std::string& owner, std::string turn_id)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    std::vector<std::string> dropped;
    while (!turn_id.empty()) {
      auto node = turns_.find(turn_id);
      if (--node->second.holders > 0) break;
      by_owner_.at(owner).bytes -= node->second.bytes;
      dropped.push_back(std::exchange(turn_id, node->second.turn.parent_turn_id));
      turns_.erase(node);
    }
    std::reverse(dropped.begin(), dropped.end());
    return dropped;
  }

  std::vector<std::string> Erase(const Session& session) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    const Session gone = session;
    sessions_.erase(gone.id);
    std::vector<std::string> dropped = Release(gone.owner, gone.head_turn_id);
    auto mine = by_owner_.find(gone.owner);
    mine->second.by_age.erase({gone.created_unix_ms, gone.id});
    if (mine->second.by_age.empty()) by_owner_.erase(mine);
    return dropped;
  }

  absl::StatusOr<Session> Insert(Session session) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    auto mine = by_owner_.find(session.owner);
    size_t n_sessions = mine == by_owner_.end() ? 0 : mine->second.by_age.size();
    if (n_sessions >= static_cast<size_t>(limits_.max_sessions_per_owner)) {
      return TooManySessions(session.owner, limits_.max_sessions_per_owner);
    }
    if (!session.head_turn_id.empty()) ++turns_.at(session.head_turn_id).holders;
    by_owner_[session.owner].by_age.insert({session.created_unix_ms, session.id});
    return sessions_.emplace(session.id, std::move(session)).first->second;
  }

  const SessionLimits limits_;
  Mutex mu_;
  absl::flat_hash_map<std::string, Session> sessions_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_map<std::string, TurnNode> turns_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_map<std::string, Holdings> by_owner_ ABSL_GUARDED_BY(mu_);
};

}  // namespace

std::unique_ptr<SessionStore> NewMemoryStore(const SessionLimits& limits) {
  return std::make_unique<MemoryStore>(limits);
}

}  // namespace sluice
