#include "router/cluster_view.h"

#include <algorithm>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace sluice {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

std::string FieldText(const Message& message, const FieldDescriptor* field) {
  const Reflection* reflection = message.GetReflection();
  if (field->cpp_type() == FieldDescriptor::CPPTYPE_STRING) return reflection->GetString(message, field);
  return absl::StrCat(reflection->GetInt32(message, field));
}

// What a reply counts for against the next one.
constexpr double kOlder = 0.8;

absl::Status CheckReport(const internal::v1::WorkerReport& report) {
  if (report.name().empty()) return absl::InvalidArgumentError("name: empty; give the worker a --name");
  if (report.incarnation().empty()) return absl::InvalidArgumentError("incarnation: empty");
  if (report.address().empty()) return absl::InvalidArgumentError("address: empty");
  if (report.role() != "prefill" && report.role() != "decode") {
    return absl::InvalidArgumentError(absl::StrCat("role: \"", report.role(), "\" is not prefill or decode"));
  }
  return absl::OkStatus();
}

}  // namespace

const char* RoleName(WorkerRole role) { return role == WorkerRole::kPrefill ? "prefill" : "decode"; }

const char* StateName(WorkerState state) {
  switch (state) {
    case WorkerState::kJoining:
      return "joining";
    case WorkerState::kReady:
      return "ready";
    case WorkerState::kDraining:
      return "draining";
    case WorkerState::kLost:
      return "lost";
  }
  return "";
}

std::string FirstDifference(const internal::v1::ModelIdentity& ours,
                            const internal::v1::ModelIdentity& theirs) {
  const google::protobuf::Descriptor* descriptor = internal::v1::ModelIdentity::descriptor();
  for (int i = 0; i < descriptor->field_count(); ++i) {
    const FieldDescriptor* field = descriptor->field(i);
    std::string our_text = FieldText(ours, field);
    std::string their_text = FieldText(theirs, field);
    if (our_text != their_text) {
      return absl::StrCat(field->name(), ": router has ", our_text, ", worker has ", their_text);
    }
  }
  return "";
}

ClusterView::ClusterView(internal::v1::ModelIdentity own, const ClusterOptions& options)
    : own_(std::move(own)), options_(options) {}

absl::Status ClusterView::Register(const internal::v1::WorkerReport& report, absl::Time now) {
  if (absl::Status status = CheckReport(report); !status.ok()) return status;
  std::string difference = FirstDifference(own_, report.model());
  if (!difference.empty()) {
    return absl::FailedPreconditionError(
        absl::StrCat("model.", difference, "; start router and workers with the same --model"));
  }
  WorkerRole role = report.role() == "prefill" ? WorkerRole::kPrefill : WorkerRole::kDecode;
  for (auto it = workers_.begin(); it != workers_.end();) {
    const WorkerInfo& other = it->second.info;
    bool same = it->first == report.incarnation() || (other.role == role && other.ref.name == report.name());
    if (same && other.state != WorkerState::kLost) {
      return absl::AlreadyExistsError(absl::StrCat(
          "a live ", report.role(), " worker is registered as ", other.ref.name, " (lease ends in ",
          absl::FormatDuration(it->second.lease_end - now), "); give this one another --name"));
    }
    it = same ? workers_.erase(it) : std::next(it);
  }
  if (static_cast<int>(workers_.size()) >= options_.max_workers) {
    return absl::ResourceExhaustedError(absl::StrCat("the router takes ", options_.max_workers, " workers"));
  }
  Worker worker;
  worker.info.ref = {report.name(), report.incarnation(), report.address()};
  worker.info.role = role;
  worker.info.model = report.model().name();
  worker.info.weights_hash = report.model().weights_hash();
  TakeLoad(&worker, report.load());
  worker.lease_end = now + options_.lease;
  workers_.emplace(report.incarnation(), std::move(worker));
  return absl::OkStatus();
}

absl::Status ClusterView::Renew(absl::string_view incarnation, const internal::v1::WorkerLoad& load,
                                absl::Time now) {
  auto it = workers_.find(incarnation);
  if (it == workers_.end() || it->second.info.state == WorkerState::kLost) {
    return absl::NotFoundError("the lease ran out; register again");
  }
  TakeLoad(&it->second, load);
  it->second.lease_end = now + options_.lease;
  return absl::OkStatus();
}

void ClusterView::TakeLoad(Worker* worker, const internal::v1::WorkerLoad& load) {
  worker->info.load = load;
  worker->others_tokens = std::max<int64_t>(load.queued_tokens() - worker->tokens, 0);
  if (worker->order == load.draining()) worker->order.reset();
  if (worker->order.value_or(load.draining())) {
    worker->info.state = WorkerState::kDraining;
  } else {
    worker->info.state = load.ready() ? WorkerState::kReady : WorkerState::kJoining;
  }
}

absl::StatusOr<std::string> ClusterView::Order(absl::string_view worker, bool drain) {
  std::vector<std::string> found, names;
  for (const auto& [incarnation, known] : workers_) {
    if (known.info.state == WorkerState::kLost) continue;
    names.push_back(known.info.ref.name);
    if (worker == incarnation || worker == known.info.ref.name) found.push_back(incarnation);
  }
  if (found.empty()) {
    return absl::NotFoundError(absl::StrCat(
        "worker: no \"", worker, "\"; there are: ", names.empty() ? "none" : absl::StrJoin(names, ", ")));
  }
  if (found.size() > 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        "worker: \"", worker, "\" names several; give one's incarnation: ", absl::StrJoin(found, ", ")));
  }
  Worker& named = workers_.find(found[0])->second;
  named.order = drain;
  TakeLoad(&named, named.info.load);
  return found[0];
}

WorkerOrders ClusterView::OrdersFor(absl::string_view incarnation) const {
  auto it = workers_.find(incarnation);
  if (it == workers_.end()) return {};
  return {it->second.order, it->second.info.state == WorkerState::kDraining};
}

DrainState ClusterView::Draining(absl::string_view incarnation) const {
  auto it = workers_.find(incarnation);
  if (it == workers_.end() || it->second.info.state == WorkerState::kLost) return {DrainState::kGone, 0};
  const Worker& worker = it->second;
  const internal::v1::WorkerLoad& load = worker.info.load;
  DrainState state{DrainState::kOff, std::max(worker.requests, load.running() + load.queued())};
  if (worker.info.state == WorkerState::kDraining) {
    state.stage = worker.order.has_value() ? DrainState::kAsked : DrainState::kOn;
  }
  return state;
}

void ClusterView::Lose(Worker* worker, absl::Time now) {
  worker->info.state = WorkerState::kLost;
  worker->lease_end = now;
  prefixes_.Forget(worker->info.ref.incarnation);
}

bool ClusterView::Leave(absl::string_view incarnation, absl::Time now) {
  auto it = workers_.find(incarnation);
  if (it == workers_.end() || it->second.info.state == WorkerState::kLost) return false;
  Lose(&it->second, now);
  return true;
}

std::vector<std::string> ClusterView::Expire(absl::Time now) {
  std::vector<std::string> lost;
  for (auto it = workers_.begin(); it != workers_.end();) {
    Worker& worker = it->second;
    if (worker.info.state == WorkerState::kLost) {
      it = now - worker.lease_end >= options_.remember_lost ? workers_.erase(it) : std::next(it);
      continue;
    }
    if (now >= worker.lease_end) {
      Lose(&worker, now);
      lost.push_back(it->first);
    }
    ++it;
  }
  return lost;
}

void ClusterView::Avoid(absl::string_view incarnation, absl::Time until) {
  auto it = workers_.find(incarnation);
  if (it != workers_.end()) it->second.avoid_until = std::max(it->second.avoid_until, until);
}

void ClusterView::AddLoad(absl::string_view incarnation, int requests, int64_t tokens) {
  auto it = workers_.find(incarnation);
  if (it == workers_.end()) return;
  it->second.requests += requests;
  it->second.tokens += tokens;
}

void ClusterView::TellSpeed(absl::string_view incarnation, int tokens, absl::Duration took) {
  auto it = workers_.find(incarnation);
  if (it == workers_.end() || tokens <= 0) return;
  Worker& worker = it->second;
  worker.spoken_tokens = worker.spoken_tokens * kOlder + tokens;
  worker.speaking_seconds = worker.speaking_seconds * kOlder + absl::ToDoubleSeconds(took);
}

void ClusterView::RememberPrefix(absl::Span<const uint64_t> prefix, const std::string& incarnation) {
  auto it = workers_.find(incarnation);
  if (it == workers_.end() || it->second.info.state == WorkerState::kLost) return;
  prefixes_.Remember(prefix, incarnation);
}

std::vector<Candidate> ClusterView::Candidates(WorkerRole role, const RouteQuery& query,
                                               const std::set<std::string>& excluded, absl::Time now) const {
  std::vector<Candidate> candidates;
  const std::map<std::string, int64_t> holders = prefixes_.Holders(query.prefix);
  for (const auto& [incarnation, worker] : workers_) {
    if (worker.info.role != role || worker.info.state != WorkerState::kReady) continue;
    if (worker.avoid_until > now || excluded.count(incarnation)) continue;
    const internal::v1::WorkerLoad& load = worker.info.load;
    Candidate candidate;
    candidate.name = worker.info.ref.name;
    candidate.incarnation = incarnation;
    candidate.reported_requests = load.running() + load.queued();
    candidate.requests = std::max(worker.requests, candidate.reported_requests);
    candidate.tokens = worker.tokens + worker.others_tokens;
    auto holder = holders.find(incarnation);
    if (holder != holders.end()) candidate.cached_tokens = holder->second;
    if (query.home == SessionHome{candidate.name, incarnation}) {
      candidate.cached_tokens = std::max(candidate.cached_tokens, query.history_tokens);
    }
    candidate.bytes_in_flight = load.bytes_in_flight();
    candidate.tokens_per_second = load.prefill_tokens_per_second();
    candidate.pages_free = load.kv_pages_free();
    candidate.pages_total = load.kv_pages_total();
    if (candidate.requests > 0 && worker.spoken_tokens > 0) {
      candidate.seconds_per_token = worker.speaking_seconds / worker.spoken_tokens;
    }
    candidates.push_back(std::move(candidate));
  }
  std::sort(candidates.begin(), candidates.end(),
            [](const Candidate& a, const Candidate& b) { return a.name < b.name; });
  return candidates;
}

absl::StatusOr<WorkerRef> ClusterView::Pick(WorkerRole role, const RoutePolicy& policy,
                                            const RouteQuery& query, const std::set<std::string>& excluded,
                                            absl::Time now) const {
  if (Count(role, WorkerState::kReady) == 0) {
    const int draining = Count(role, WorkerState::kDraining);
    std::string drained = draining == 0 ? "" : absl::StrCat(", ", draining, " draining");
    return absl::UnavailableError(absl::StrCat("no ready ", RoleName(role), " worker", drained));
  }
  const std::vector<Candidate> candidates = Candidates(role, query, excluded, now);
  if (candidates.empty())
    return absl::ResourceExhaustedError(absl::StrCat("all ", RoleName(role), " workers are busy"));
  size_t chosen =
      role == WorkerRole::kPrefill ? policy.Prefill(query, candidates) : policy.Decode(query, candidates);
  return workers_.find(candidates[chosen].incarnation)->second.info.ref;
}

bool ClusterView::Usable(const WorkerRef& worker, absl::Time now) const {
  auto it = workers_.find(worker.incarnation);
  if (it == workers_.end() || it->second.avoid_until > now) return false;
  const WorkerState state = it->second.info.state;
  return state == WorkerState::kReady || state == WorkerState::kDraining;
}

std::vector<WorkerInfo> ClusterView::List(absl::Time now) const {
  std::vector<WorkerInfo> list;
  for (const auto& [incarnation, worker] : workers_) {
    list.push_back(worker.info);
    bool lost = worker.info.state == WorkerState::kLost;
    list.back().lease_left = lost ? absl::ZeroDuration() : worker.lease_end - now;
  }
  std::sort(list.begin(), list.end(), [](const WorkerInfo& a, const WorkerInfo& b) {
    return std::tie(a.role, a.ref.name, a.ref.incarnation) < std::tie(b.role, b.ref.name, b.ref.incarnation);
  });
  return list;
}

int ClusterView::Count(WorkerRole role, WorkerState state) const {
  int count = 0;
  for (const auto& [incarnation, worker] : workers_) {
    count += worker.info.role == role && worker.info.state == state;
  }
  return count;
}

}  // namespace sluice
