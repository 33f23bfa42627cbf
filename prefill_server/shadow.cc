#include "prefill_server/shadow.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/engine/philox.h"

namespace sluice {
namespace {

// Bounds of what a kept set of all rows needs with any selection: half as much as its pages, K^T for sparq.
constexpr double kBoundsShare = 0.2;

bool Compresses(const ResolvedGates& gates) {
  return gates.propagation.kind != PropagationKind::kNone || gates.retention.kind != RetentionKind::kFull ||
         gates.selection.kind != SelectionKind::kDense;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Shadow>> Shadow::Create(const RankedModel* model, const ShadowOptions& options,
                                                       const Clock* clock, PrefillMetrics* metrics) {
  if (!(options.rate > 0 && options.rate <= 1))
    return absl::InvalidArgumentError(absl::StrCat("shadow rate ", options.rate, ": must be in (0, 1]"));
  auto shadow = absl::WrapUnique(new Shadow(model, options, clock, metrics));
  SLUICE_ASSIGN_OR_RETURN(shadow->cache_,
                          RankedCache::Create(model->group(), model->kv_shape(),
                                              {.n_slots = 2,
                                               .max_rows = model->shape().context,
                                               .memory_bytes = options.memory_bytes,
                                               .bounds_share = kBoundsShare,
                                               .sliding_windows = model->shape().sliding_window}));
  shadow->decode_ = std::make_unique<RankedDecode>(model, shadow->cache_.get());
  return shadow;
}

void Shadow::Offer(std::shared_ptr<PrefillJob> job) {
  const PrefillRequest& request = job->request;
  const bool drawn = Compresses(request.gates) && PhiloxUniform(/*seed=*/0, draws_++) < options_.rate;
  if (!drawn && !request.measure) return;
  if (waiting_.size() == kMaxWaiting) return Skip(*job, "busy");
  const absl::Time deadline = request.measure ? job->attempt().deadline : clock_->Now() + kDeadline;
  waiting_.push_back({std::move(job), deadline});
}

void Shadow::Tend() {
  const absl::Time now = clock_->Now();
  const auto over = [&](const Picked& one) -> const char* {
    return one.job->cancelled ? "cancelled" : now > one.deadline ? "deadline" : nullptr;
  };
  for (auto it = waiting_.begin(); it != waiting_.end();) {
    const char* why = over(*it);
    if (why != nullptr) Skip(*it->job, why);
    it = why != nullptr ? waiting_.erase(it) : it + 1;
  }
  if (current_ == nullptr) return;
  if (const char* why = over(picked_)) SkipCurrent(why);
}

bool Shadow::due() const {
  return current_ != nullptr || std::any_of(waiting_.begin(), waiting_.end(),
                                            [](const Picked& one) { return one.job->handed_off(); });
}

void Shadow::Step(size_t free_bytes) {
  if (current_ == nullptr) {
    const auto next = std::find_if(waiting_.begin(), waiting_.end(),
                                   [](const Picked& one) { return one.job->handed_off(); });
    if (next == waiting_.end()) return;
    Picked chosen = std::move(*next);
    waiting_.erase(next);
    return Begin(std::move(chosen), free_bytes);
  }
  const absl::Time begin = clock_->Now();
  const absl::Status status = current_->Step();
  spent_ += clock_->Now() - begin;
  if (!status.ok()) return EndCurrent(status);
  if (current_->done()) Publish();
}

void Shadow::Begin(Picked next, size_t free_bytes) {
  const PrefillRequest& request = next.job->request;
  const size_t need = LossMeasurement::WorkBytes(*model_, static_cast<int>(request.prompt_ids.size()));
  if (need > free_bytes) return Skip(*next.job, "memory");
  const absl::Time begin = clock_->Now();
  absl::StatusOr<std::unique_ptr<LossMeasurement>> measurement = LossMeasurement::Begin(
      model_, cache_.get(), decode_.get(), {request.prompt_ids, request.gates, &next.job->kept->layers});
  picked_ = std::move(next);
  if (!measurement.ok()) return EndCurrent(measurement.status());
  current_ = *std::move(measurement);
  work_bytes_ = need;
  spent_ = clock_->Now() - begin;
  if (current_->done()) Publish();
}

void Shadow::Publish() {
  const CompressionLoss loss = current_->loss();
  const std::string& method = picked_.job->request.gates.method;
  const auto& top1 = metrics_->shadow_top1_tokens.At(method);
  for (float mass : loss.retained_mass) metrics_->shadow_retained_mass.At(method).Observe(mass);
  top1.At("agree").Increment(loss.top1_agreed);
  top1.At("differ").Increment(loss.top1_tokens - loss.top1_agreed);
  metrics_->shadow_measured.At(method).Increment();
  metrics_->shadow_seconds.Observe(absl::ToDoubleSeconds(spent_));
  const double layers = static_cast<double>(std::max<size_t>(loss.retained_mass.size(), 1));
  spdlog::info("shadow measured id={} method={} mass_mean={:.3f} top1={}/{} ms={:.1f}",
               picked_.job->request.handoff_id, method,
               std::accumulate(loss.retained_mass.begin(), loss.retained_mass.end(), 0.0) / layers,
               loss.top1_agreed, loss.top1_tokens, absl::ToDoubleMilliseconds(spent_));
  picked_.job->SetLoss(loss);
  EndCurrent(absl::OkStatus());
}

void Shadow::Skip(PrefillJob& job, const std::string& reason) {
  metrics_->shadow_skipped.At(reason).Increment();
  CompressionLoss loss;
  loss.skipped = reason;
  job.SetLoss(loss);
}

void Shadow::SkipCurrent(const std::string& reason) {
  Skip(*picked_.job, reason);
  EndCurrent(absl::OkStatus());
}

void Shadow::EndCurrent(const absl::Status& status) {
  if (!status.ok()) {
    const bool memory = absl::IsResourceExhausted(status);
    if (!memory) spdlog::warn("shadow failed error=\"{}\"", status.ToString());
    Skip(*picked_.job, memory ? "memory" : "error");
  }
  current_.reset();
  picked_ = Picked();
  work_bytes_ = 0;
}

void Shadow::GiveWay() {
  if (current_ != nullptr) SkipCurrent("memory");
  for (auto it = waiting_.begin(); it != waiting_.end();) {
    const bool holds = it->job->handed_off();  // else its hand-off does
    if (holds) Skip(*it->job, "memory");
    it = holds ? waiting_.erase(it) : it + 1;
  }
}

void Shadow::Stop() {
  if (current_ != nullptr) SkipCurrent("stopping");
  for (const Picked& one : std::exchange(waiting_, {})) Skip(*one.job, "stopping");
}

}  // namespace sluice
