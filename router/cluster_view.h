// Role: what the router knows of its workers: who is there, under which lease, of which model, how loaded.
// Why it exists: every decision about workers is made from here, and nowhere else is it remembered.
// Threads: none of its own and no lock; one owner calls it (Cluster). Time is an argument.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "router/policies/route_policy.h"
#include "router/prefix_table.h"
#include "sluice/internal/v1/worker.pb.h"

namespace sluice {

enum class WorkerRole { kPrefill, kDecode };
const char* RoleName(WorkerRole role);  // "prefill", "decode"

// joining: registered, its model is not loaded yet. draining: no new requests. lost: its lease ran out or its
// stream broke.
enum class WorkerState { kJoining, kReady, kDraining, kLost };
const char* StateName(WorkerState state);

// What a worker is told with every reply.
struct WorkerOrders {
  std::optional<bool> drain;  // an operator's order that it has not agreed to yet
  bool draining = false;      // no new requests from this router
};

// How far the drain of a worker or of the router is.
struct DrainState {
  enum Stage { kOff, kAsked, kOn, kGone };  // kAsked: it has not agreed yet. kGone: it left or was lost
  Stage stage = kOff;
  int remaining =
      0;  // requests it has: those of every router, as it says, or those of this one where they are more
};

// One life of a worker process.
struct WorkerRef {
  std::string name;
  std::string incarnation;
  std::string address;
  friend bool operator==(const WorkerRef&, const WorkerRef&) = default;
};

struct WorkerInfo {
  WorkerRef ref;
  WorkerRole role = WorkerRole::kPrefill;
  std::string model, weights_hash;
  WorkerState state = WorkerState::kJoining;
  absl::Duration lease_left;
  internal::v1::WorkerLoad load;
};

struct ClusterOptions {
  absl::Duration lease = absl::Seconds(10);
  absl::Duration remember_lost = absl::Minutes(10);  // how long a lost worker is listed
  int max_workers = 1024;
};

class ClusterView {
 public:
  // own: the router's model; a worker of another one is refused.
  ClusterView(internal::v1::ModelIdentity own, const ClusterOptions& options);

  // InvalidArgument: a field is missing. FailedPrecondition: names the first field of the identity that
  // differs. AlreadyExists: a live worker has this name and role. ResourceExhausted: too many workers.
  absl::Status Register(const internal::v1::WorkerReport& report, absl::Time now);
  // NotFound: this incarnation has no lease (any more).
  absl::Status Renew(absl::string_view incarnation, const internal::v1::WorkerLoad& load, absl::Time now);
  // Its stream ended. False: it was not known or lost already.
  bool Leave(absl::string_view incarnation, absl::Time now);
  // Incarnations whose lease ran out with this call.
  std::vector<std::string> Expire(absl::Time now);

  // Starts or ends a worker's drain. NotFound, InvalidArgument: name or incarnation of no worker, or of
  // several. Its incarnation.
  absl::StatusOr<std::string> Order(absl::string_view worker, bool drain);
  WorkerOrders OrdersFor(absl::string_view incarnation) const;
  DrainState Draining(absl::string_view incarnation) const;

  // No new request for this worker until then.
  void Avoid(absl::string_view incarnation, absl::Time until);
  // This router's own share of a worker's load. tokens: not yet computed.
  void AddLoad(absl::string_view incarnation, int requests, int64_t tokens);
  // A reply that this decode worker has ended, and nobody held back.
  void TellSpeed(absl::string_view incarnation, int tokens, absl::Duration took);
  // This prefill worker remembers a prompt that begins so; or nothing any more.
  void RememberPrefix(absl::Span<const uint64_t> prefix, const std::string& incarnation);
  void ForgetPrefixes(const std::string& incarnation) { prefixes_.Forget(incarnation); }

  // Ready, not avoided and not excluded, by name.
  std::vector<Candidate> Candidates(WorkerRole role, const RouteQuery& query,
                                    const std::set<std::string>& excluded, absl::Time now) const;

  // The policy's choice. Unavailable: no ready worker of this role. ResourceExhausted: there are some, and
  // all are avoided or excluded now.
  absl::StatusOr<WorkerRef> Pick(WorkerRole role, const RoutePolicy& policy, const RouteQuery& query,
                                 const std::set<std::string>& excluded, absl::Time now) const;
  // It may go on with what it has: ready or draining, and not avoided.
  bool Usable(const WorkerRef& worker, absl::Time now) const;

  std::vector<WorkerInfo> List(absl::Time now) const;  // by role, then name
  int Count(WorkerRole role, WorkerState state) const;

 private:
  struct Worker {
    WorkerInfo info;
    absl::Time lease_end;  // lost: when it was lost
    absl::Time avoid_until = absl::InfinitePast();
    std::optional<bool> order;  // to drain or not, until the worker agrees
    int requests = 0;           // given by this router
    int64_t tokens = 0;
    int64_t others_tokens = 0;                       // given by others, when it reported last
    double spoken_tokens = 0, speaking_seconds = 0;  // of its last replies, the older the less
  };
  void TakeLoad(Worker* worker, const internal::v1::WorkerLoad& load);
  void Lose(Worker* worker, absl::Time now);

  const internal::v1::ModelIdentity own_;
  const ClusterOptions options_;
  std::map<std::string, Worker, std::less<>> workers_;  // by incarnation
  PrefixTable prefixes_;
};

// The name of the first field of the identity that differs, with both values; empty: the same model. The
// name of a model is its deployment's choice and is compared too.
std::string FirstDifference(const internal::v1::ModelIdentity& ours,
                            const internal::v1::ModelIdentity& theirs);

}  // namespace sluice
