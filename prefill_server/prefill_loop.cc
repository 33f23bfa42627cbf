#include "prefill_server/prefill_loop.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <numeric>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"

namespace sluice {
namespace {

constexpr absl::Duration kIdleWait = absl::Milliseconds(50);
constexpr double kOlder = 0.8;  // what a pass counts for in the rate, against the next one

int WindowOf(const ResolvedGates& gates) {
  return std::max({1, gates.retention.observation.window, gates.propagation.observation.window});
}

// Its id and what is asked about it.
absl::StatusOr<FirstToken> FirstTokenOf(RankedPrefill& pass, int sequence, const PrefillRequest& request,
                                        const SampleState& state) {
  const SamplingParams& sampling = request.sampling;
  const std::optional<int32_t> forced = ForcedToken(sampling, request.emitted);
  const bool draws = !forced.has_value() && !TakesBest(sampling, request.emitted);
  FirstToken token;
  SLUICE_ASSIGN_OR_RETURN(token.id, pass.LastBest(sequence));
  if (forced.has_value()) token.id = *forced;
  if (!draws && !sampling.logprobs) return token;
  SLUICE_ASSIGN_OR_RETURN(const std::vector<float> logits, pass.LastLogits(sequence));
  if (draws) {
    SLUICE_ASSIGN_OR_RETURN(token.id, SampleToken(logits, sampling, state, request.emitted));
  }
  if (sampling.logprobs) token.logprobs = LogprobsOf(logits, token.id, sampling.top_logprobs);
  return token;
}

std::vector<Backend*> Backends(const BackendGroup& group) {
  std::vector<Backend*> ranks;
  for (int rank = 0; rank < group.size(); ++rank) ranks.push_back(group.rank(rank));
  return ranks;
}

}  // namespace

// One job inside a pass: its history, and where its layers go.
class PrefillLoop::Sequence final : public RankedSink {
 public:
  Sequence(PrefillLoop* loop, std::shared_ptr<PrefillJob> job) : loop_(loop), job_(std::move(job)) {
    const PrefillRequest& request = job_->request;
    const absl::Time now = loop->clock_->Now();
    const int n = static_cast<int>(request.prompt_ids.size());
    started_ = now;
    if (remembers()) {
      if (request.gates.history == HistoryKind::kKeep) {
        path_ = loop->history_.Match(request.partition, request.prompt_ids, n - WindowOf(request.gates), now);
        cached_tokens_ = path_.tokens();
        extension_ = loop->history_.Begin(request.partition, request.prompt_ids, path_, now);
        keeps_rows_ = true;
      } else {
        kept_history_ = loop->history_.FindKept(request.partition, request.parent_turn_id, now);
        if (kept_history_ != nullptr) {
          const std::vector<int32_t>& ids = kept_history_->ids;
          const int known = static_cast<int>(ids.size());
          if (known + WindowOf(request.gates) <= n &&
              std::equal(ids.begin(), ids.end(), request.prompt_ids.begin())) {
            cached_tokens_ = known;
          } else {
            kept_history_ = nullptr;
          }
        }
      }
    }
    job_->kept->ids = request.prompt_ids;
    job_->kept->head_dim = loop->model_->kv_shape().head_dim;
    job_->kept->layers.resize(loop->model_->kv_shape().n_layers);
    int history_rows = path_.tokens();
    if (kept_history_ != nullptr) {
      for (int layer = 0; layer < loop->model_->kv_shape().n_layers; ++layer) {
        history_rows = std::max(history_rows, kept_history_->rows(LayerId(layer)));
      }
    }
    job_->ceilings = KeptCeilings(loop->model_->kv_shape(), request.gates, history_rows + n - cached_tokens_);
  }

  RankedPrefillSequence Describe() {
    RankedPrefillSequence sequence;
    const PrefillRequest& request = job_->request;
    sequence.ids.assign(request.prompt_ids.begin() + cached_tokens_, request.prompt_ids.end());
    sequence.first_position = cached_tokens_;
    if (kept_history_ != nullptr) {
      sequence.history = kept_history_.get();
    } else if (cached_tokens_ > 0) {
      sequence.history = &path_;
    }
    sequence.gates = request.gates;
    sequence.sink = this;
    return sequence;
  }

  bool wants_new_rows() const override { return keeps_rows_; }
  absl::Status OnNewRows(int rank, LayerId layer, TensorView k, TensorView v, Ops& ops) override {
    extension_.Write(rank, layer, k, v, ops);
    return absl::OkStatus();
  }
  absl::Status OnKept(LayerId layer, KeptLayer kept) override {
    job_->kept->layers[layer.value()] = std::move(kept);
    loop_->send_loop_->LayerDone(job_, layer);
    return absl::OkStatus();
  }

  void PublishHistory(absl::Time now) {
    const PrefillRequest& request = job_->request;
    if (keeps_rows_) {
      loop_->history_.Publish(std::move(extension_), request.turn_id, now);
    } else if (remembers()) {
      loop_->history_.PutKept(request.partition, request.turn_id, job_->kept, now);
    }
  }

  const std::shared_ptr<PrefillJob>& job() const { return job_; }
  int cached_tokens() const { return cached_tokens_; }
  int new_tokens() const { return static_cast<int>(job_->request.prompt_ids.size()) - cached_tokens_; }
  absl::Time started() const { return started_; }
  bool dropped = false;

 private:
  // What a rerun keeps stands at other positions than the prompt's: no later turn can follow it.
  bool remembers() const {
    const PrefillRequest& request = job_->request;
    return !request.session_id.empty() && request.gates.propagation.kind != PropagationKind::kRerun;
  }

  PrefillLoop* const loop_;
  const std::shared_ptr<PrefillJob> job_;
  PrefixTree::Path path_;
  PrefixTree::Extension extension_;
  std::shared_ptr<const PrefixTree::KeptSet> kept_history_;
  bool keeps_rows_ = false;
  int cached_tokens_ = 0;
  absl::Time started_;
};

struct PrefillLoop::Pass {
  std::vector<std::unique_ptr<Sequence>> sequences;
  std::unique_ptr<RankedPrefill> pass;  // destroyed before the sequences it borrows
  size_t bytes = 0;
  absl::Duration computed;

  // Of its prompts, but for what history had.
  int64_t new_tokens() const {
    int64_t tokens = 0;
    for (const auto& sequence : sequences) tokens += sequence->dropped ? 0 : sequence->new_tokens();
    return tokens;
  }
  int64_t tokens_left(int layers) const { return new_tokens() * (layers - pass->layers_done()) / layers; }
};

PrefillLoop::PrefillLoop(const RankedModel* model, SendLoop* send_loop, const PrefillLoopOptions& options,
                         const Clock* clock, PrefillMetrics* metrics, std::unique_ptr<Shadow> shadow)
    : model_(model),
      send_loop_(send_loop),
      options_(options),
      clock_(clock),
      metrics_(metrics),
      shadow_(std::move(shadow)),
      history_(Backends(model->group()), model->kv_shape(), options.history_bytes),
      inbox_(options.max_queue),
      thread_("prefill", [this] { Run(); }) {}

PrefillLoop::~PrefillLoop() { Stop(); }

size_t PrefillLoop::BytesOf(const PrefillJob& job) const {
  const int n = static_cast<int>(job.request.prompt_ids.size());
  const KvShape& shape = model_->kv_shape();
  const std::vector<int> ceilings = KeptCeilings(shape, job.request.gates, n);
  const int64_t rows = std::accumulate(ceilings.begin(), ceilings.end(), int64_t{0});
  return RankedPrefill::ScratchBytes(*model_, n, 0) + static_cast<size_t>(rows) * (2 * shape.row_bytes() + 4);
}

absl::Status PrefillLoop::Submit(std::shared_ptr<PrefillJob> job) {
  if (job->request.measure && shadow_ == nullptr) {
    return absl::FailedPreconditionError(
        "output.compression_loss: this prefill server measures nothing; start it with --shadow-rate above 0, "
        "or leave the field out");
  }
  const size_t need = BytesOf(*job);
  if (need > options_.work_bytes) {
    return absl::ResourceExhaustedError(
        absl::StrCat("a prompt of ", job->request.prompt_ids.size(), " tokens needs ", need >> 20,
                     " MB on prefill (scratch and its "
                     "kept set), --work-memory allows ",
                     options_.work_bytes >> 20, " MB: raise it, or lower the budget"));
  }
  if (queued_ >= options_.max_queue || !inbox_.TryPush(job)) {
    return absl::ResourceExhaustedError(absl::StrCat("prefill's queue is full (", options_.max_queue,
                                                     " prompts, --max-queue); try again later"));
  }
  ++queued_;
  queued_tokens_ += static_cast<int64_t>(job->request.prompt_ids.size());
  return absl::OkStatus();
}

void PrefillLoop::Stop() {
  stopping_ = true;
  inbox_.Close();
  thread_.Join();
}

void PrefillLoop::Run() {
  while (!stopping_) {
    const bool idle = queue_.empty() && long_pass_ == nullptr && short_pass_ == nullptr &&
                      (shadow_ == nullptr || !shadow_->due());
    for (auto& job : inbox_.PopAll(idle ? kIdleWait : absl::ZeroDuration())) {
      job->Progress(false, 0, model_->shape().n_layers, 0);
      queue_.push_back(std::move(job));
    }
    for (auto& errand : errands_.PopAll(absl::ZeroDuration())) errand(history_);
    DropCancelled();
    std::vector<QueuedPrompt> prompts;
    const Decision decision = Decide(Look(&prompts), options_.scheduler);
    switch (decision.kind) {
      case Decision::kWait:
        Spare();
        break;
      case Decision::kStart:
        StartPass(decision.start, decision.is_long);
        break;
      case Decision::kRunShort:
        RunLayer(&short_pass_);
        break;
      case Decision::kRunLong:
        RunLayer(&long_pass_);
        break;
    }
    running_ = static_cast<int>((long_pass_ != nullptr ? long_pass_->sequences.size() : 0) +
                                (short_pass_ != nullptr ? short_pass_->sequences.size() : 0));
    int64_t left = 0;
    for (const Pass* pass : {long_pass_.get(), short_pass_.get()}) {
      if (pass != nullptr) left += pass->tokens_left(model_->shape().n_layers);
    }
    running_tokens_ = left;
    metrics_->in_flight_queued.Set(queued_);
    metrics_->in_flight_prefill.Set(running_);
    PublishMemory();
  }
  const absl::Status stopped = absl::UnavailableError("the prefill server is stopping");
  for (auto& job : inbox_.PopAll(absl::ZeroDuration())) queue_.push_back(std::move(job));
  for (auto& job : queue_) job->attempt().events->OnError(stopped);
  if (shadow_ != nullptr) shadow_->Stop();
  for (auto* pass : {long_pass_.get(), short_pass_.get()}) {
    if (pass == nullptr) continue;
    for (auto& sequence : pass->sequences) send_loop_->Failed(sequence->job(), stopped);
  }
  long_pass_.reset();
  short_pass_.reset();
}

void PrefillLoop::PublishMemory() {
  const auto history = static_cast<double>(history_.bytes());
  metrics_->kv_memory_history_bytes.Set(history);
  metrics_->session_bytes.Set(history);
  const PrefixTree::Blocks blocks = history_.blocks();
  metrics_->kv_blocks_free.Set(static_cast<double>(blocks.free));
  metrics_->kv_blocks_active.Set(static_cast<double>(blocks.pinned));
  metrics_->kv_blocks_cached.Set(static_cast<double>(blocks.cached));
  size_t scratch = 0, kept = 0;
  for (const Pass* pass : {long_pass_.get(), short_pass_.get()}) scratch += pass == nullptr ? 0 : pass->bytes;
  for (const auto& [job, bytes] : handed_over_) kept += job.expired() ? 0 : bytes;
  metrics_->kv_memory_scratch_bytes.Set(static_cast<double>(scratch));
  metrics_->kv_memory_kept_bytes.Set(static_cast<double>(kept));
  metrics_->evictions_pressure.Increment(
      static_cast<double>(history_.evictions() - std::exchange(seen_evictions_, history_.evictions())));
  metrics_->evictions_forgotten.Increment(
      static_cast<double>(history_.forgotten() - std::exchange(seen_forgotten_, history_.forgotten())));
}

// No prompt can run: none is here, or its memory is held by hand-offs under way or by what is measured.
void PrefillLoop::Spare() {
  if (queue_.empty()) {
    const size_t in_use = BytesInUse();
    if (shadow_ != nullptr) shadow_->Step(options_.work_bytes - std::min(options_.work_bytes, in_use));
    return;
  }
  if (shadow_ != nullptr) shadow_->GiveWay();
  absl::SleepFor(absl::Milliseconds(1));
}

void PrefillLoop::DropCancelled() {
  if (shadow_ != nullptr) shadow_->Tend();
  for (auto it = queue_.begin(); it != queue_.end();) {
    if ((*it)->cancelled) {
      --queued_;
      queued_tokens_ -= static_cast<int64_t>((*it)->request.prompt_ids.size());
      metrics_->cancelled_queued.Increment();
      it = queue_.erase(it);
    } else {
      ++it;
    }
  }
  for (std::unique_ptr<Pass>* slot : {&long_pass_, &short_pass_}) {
    Pass* pass = slot->get();
    if (pass == nullptr) continue;
    int left = 0;
    for (size_t i = 0; i < pass->sequences.size(); ++i) {
      Sequence& sequence = *pass->sequences[i];
      if (!sequence.dropped && sequence.job()->cancelled) {
        sequence.dropped = true;
        pass->pass->Cancel(static_cast<int>(i));
        metrics_->cancelled_prefill.Increment();
        send_loop_->Done(sequence.job());
      }
      if (!sequence.dropped) ++left;
    }
    if (left == 0) slot->reset();
  }
}

size_t PrefillLoop::BytesInUse() const {
  size_t bytes = shadow_ == nullptr ? 0 : shadow_->work_bytes();
  for (const Pass* pass : {long_pass_.get(), short_pass_.get()}) {
    if (pass != nullptr) bytes += pass->bytes;
  }
  for (const auto& [job, kept] : handed_over_) {
    if (!job.expired()) bytes += kept;
  }
  return bytes;
}

SchedulerState PrefillLoop::Look(std::vector<QueuedPrompt>* prompts) const {
  const size_t in_use = BytesInUse();
  for (const auto& job : queue_) {
    prompts->push_back(
        {static_cast<int>(job->request.prompt_ids.size()), in_use + BytesOf(*job) <= options_.work_bytes});
  }
  return {*prompts, long_pass_ != nullptr, short_pass_ != nullptr, long_pass_owed_};
}

void PrefillLoop::StartPass(const std::vector<int>& picked, bool is_long) {
  auto pass = std::make_unique<Pass>();
  std::vector<RankedPrefillSequence> described;
  const absl::Time now = clock_->Now();
  for (int i : picked) {
    std::shared_ptr<PrefillJob> job = queue_[i];
    --queued_;
    queued_tokens_ -= static_cast<int64_t>(job->request.prompt_ids.size());
    metrics_->queue_seconds.Observe(absl::ToDoubleSeconds(now - job->arrived));
    pass->bytes += BytesOf(*job);
    auto sequence = std::make_unique<Sequence>(this, std::move(job));
    metrics_->prefix_tokens_hit.Increment(sequence->cached_tokens());
    metrics_->prefix_tokens_miss.Increment(sequence->new_tokens());
    described.push_back(sequence->Describe());
    sequence->job()->Progress(true, 0, model_->shape().n_layers, sequence->cached_tokens());
    send_loop_->Offer(sequence->job());
    pass->sequences.push_back(std::move(sequence));
  }
  for (auto it = picked.rbegin(); it != picked.rend(); ++it) queue_.erase(queue_.begin() + *it);
  metrics_->batch_size.Observe(static_cast<double>(picked.size()));
  absl::StatusOr<std::unique_ptr<RankedPrefill>> created = RankedPrefill::Create(model_, described);
  if (!created.ok()) {
    for (auto& sequence : pass->sequences) send_loop_->Failed(sequence->job(), created.status());
    return;
  }
  pass->pass = *std::move(created);
  (is_long ? long_pass_ : short_pass_) = std::move(pass);
}

void PrefillLoop::RunLayer(std::unique_ptr<Pass>* slot) {
  Pass* pass = slot->get();
  const absl::Time begin = clock_->Now();
  absl::Status status = pass->pass->RunLayer();
  const absl::Duration took = clock_->Now() - begin;
  pass->computed += took;
  metrics_->step_seconds.Observe(absl::ToDoubleSeconds(took));
  metrics_->last_forward_timestamp_seconds.Set(absl::ToDoubleSeconds(absl::Now() - absl::UnixEpoch()));
  if (slot == &long_pass_) long_pass_owed_ = false;
  if (!status.ok()) {
    spdlog::error("prefill layer failed error=\"{}\"", status.ToString());
    for (auto& sequence : pass->sequences) {
      if (!sequence->dropped) send_loop_->Failed(sequence->job(), status);
    }
    slot->reset();
    return;
  }
  for (auto& sequence : pass->sequences) {
    if (sequence->dropped) continue;
    sequence->job()->Progress(true, pass->pass->layers_done(), model_->shape().n_layers,
                              sequence->cached_tokens());
  }
  if (!pass->pass->done()) return;
  FinishPass(pass);
  if (slot == &short_pass_) long_pass_owed_ = true;
  slot->reset();
}

void PrefillLoop::Rate(const Pass& pass) {
  rated_tokens_ = rated_tokens_ * kOlder + static_cast<double>(pass.new_tokens());
  rated_seconds_ = rated_seconds_ * kOlder + absl::ToDoubleSeconds(pass.computed);
  if (rated_seconds_ > 0) tokens_per_second_ = rated_tokens_ / rated_seconds_;
}

void PrefillLoop::FinishPass(Pass* pass) {
  Rate(*pass);
  const absl::Time now = clock_->Now();
  handed_over_.erase(std::remove_if(handed_over_.begin(), handed_over_.end(),
                                    [](const auto& entry) { return entry.first.expired(); }),
                     handed_over_.end());
  for (size_t i = 0; i < pass->sequences.size(); ++i) {
    Sequence& sequence = *pass->sequences[i];
    if (sequence.dropped) continue;
    const std::shared_ptr<PrefillJob>& job = sequence.job();
    const PrefillRequest& request = job->request;
    SampleState state;
    const size_t prompt = request.prompt_ids.size() - request.emitted;
    if (request.sampling.repetition_penalty != 1) {
      std::set<int32_t> distinct(request.prompt_ids.begin(), request.prompt_ids.begin() + prompt);
      job->seal.distinct_prompt_ids.assign(distinct.begin(), distinct.end());
      state.AddPrompt({request.prompt_ids.data(), prompt});
    }
    for (size_t j = prompt; j < request.prompt_ids.size(); ++j) state.AddOutput(request.prompt_ids[j]);
    absl::StatusOr<FirstToken> first = FirstTokenOf(*pass->pass, static_cast<int>(i), request, state);
    if (!first.ok()) {
      if (absl::IsInternal(first.status())) metrics_->non_finite_logits.Increment();
      send_loop_->Failed(job, first.status());
      continue;
    }
    sequence.PublishHistory(now);
    FirstToken token = *std::move(first);
    token.stop = CheckStop(token.id, request.sampling, request.emitted);
    token.queued = sequence.started() - job->arrived;
    token.computed = now - sequence.started();
    token.cached_tokens = sequence.cached_tokens();
    if (!request.session_id.empty() && !request.parent_turn_id.empty()) {
      token.history_outcome = sequence.cached_tokens() > 0 ? "warm" : "cold";
    }
    metrics_->prefill_seconds.Observe(absl::ToDoubleSeconds(token.computed));
    if (!model_->group().rank(0)->is_gpu()) {
      metrics_->compression_seconds.At(request.gates.method)
          .Observe(absl::ToDoubleSeconds(pass->pass->gate_time(static_cast<int>(i))));
    }
    job->seal.logical_len = LogicalLen(PromptEnd(request.gates, static_cast<int>(request.prompt_ids.size())));
    job->seal.first_token = token.id;
    handed_over_.emplace_back(job, job->kept->bytes());
    job->SetFirstToken(token);
    if (token.stop != StopReason::kNone) {
      send_loop_->Done(job);
    } else {
      if (shadow_ != nullptr) shadow_->Offer(job);
      send_loop_->Sealed(job);
    }
  }
}

}  // namespace sluice
