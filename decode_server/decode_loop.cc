#include "decode_server/decode_loop.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"

namespace sluice {
namespace {

constexpr absl::Duration kIdleWait = absl::Milliseconds(50);
constexpr absl::Duration kPausedWait = absl::Milliseconds(2);

// The token that a step gives a sequence; -1: none.
int32_t TokenOf(const DecodeResult& result, const SamplingParams& sampling, const SampleState& state,
                int index) {
  if (result.token < 0) return -1;
  if (const std::optional<int32_t> forced = ForcedToken(sampling, index)) return *forced;
  if (sampling.logit_bias.empty()) return result.token;
  return SampleToken(result.logits, sampling, state, index).value_or(-1);
}

double UnixNow() { return absl::ToDoubleSeconds(absl::Now() - absl::UnixEpoch()); }

}  // namespace

DecodeLoop::DecodeLoop(const RankedModel* model, RankedCache* cache, GenerationTable* table,
                       const DecodeLoopOptions& options, const Clock* clock, DecodeMetrics* metrics)
    : model_(model),
      table_(table),
      options_(options),
      clock_(clock),
      metrics_(metrics),
      stepper_(model, cache),
      queue_(options.max_queue),
      thread_("decode", [this] { Run(); }) {}

DecodeLoop::~DecodeLoop() { Stop(); }

bool DecodeLoop::Start(ReadySequence sequence) {
  const int pages = sequence.kv->pages();
  waiting_pages_ += pages;
  if (queue_.TryPush(std::move(sequence))) return true;
  waiting_pages_ -= pages;
  return false;
}

void DecodeLoop::Stop() {
  stopping_ = true;
  queue_.Close();
  thread_.Join();
}

void DecodeLoop::Run() {
  while (!stopping_) {
    absl::Duration wait = running_.empty() ? kIdleWait : absl::ZeroDuration();
    for (ReadySequence& sequence : queue_.PopAll(wait)) Admit(std::move(sequence));
    if (!running_.empty()) Step();
  }
  const absl::Status stopped = absl::UnavailableError("the decode server is stopping");
  for (ReadySequence& sequence : queue_.PopAll(absl::ZeroDuration())) Admit(std::move(sequence));
  for (auto& running : running_) Finish(running.get(), stopped, {});
  running_.clear();
  running_count_ = 0;
}

void DecodeLoop::Admit(ReadySequence sequence) {
  auto running = std::make_unique<Running>();
  running->generation = std::move(sequence.generation);
  running->kv = std::move(sequence.kv);
  running->position = sequence.next_position;
  running->token = sequence.first_token;
  running->index = static_cast<int>(running->generation->emitted.size());
  running->state.AddPrompt(std::vector<int32_t>(sequence.prompt_ids.begin(), sequence.prompt_ids.end()));
  for (int32_t id : running->generation->emitted) running->state.AddOutput(id);
  running->state.AddOutput(running->token);
  running->started = clock_->Now();
  running_.push_back(std::move(running));
  running_count_ = static_cast<int>(running_.size());
  const int pages = running_.back()->kv->pages();
  running_pages_ += pages;
  waiting_pages_ -= pages;
}

void DecodeLoop::CountPages() {
  int pages = 0;
  for (const auto& running : running_) pages += running->kv == nullptr ? 0 : running->kv->pages();
  running_pages_ = pages;
}

std::vector<DecodeLoop::Running*> DecodeLoop::PickBatch() {
  std::vector<Running*> batch;
  for (size_t i = 0; i < running_.size() && static_cast<int>(batch.size()) < options_.max_batch; ++i) {
    Running* candidate = running_[(next_ + i) % running_.size()].get();
    if (candidate->generation->sink->writable()) batch.push_back(candidate);
  }
  if (!running_.empty()) next_ = (next_ + options_.max_batch) % running_.size();

  // Oldest first, so that the youngest is the one to give way.
  std::vector<Running*> ready;
  std::vector<Running*> preempted;
  for (Running* sequence : batch) {
    if (std::find(preempted.begin(), preempted.end(), sequence) != preempted.end()) continue;
    absl::Status room = sequence->kv->ReserveAppend(stepper_.queues());
    while (!room.ok()) {
      Running* youngest = nullptr;
      for (auto it = running_.rbegin(); it != running_.rend() && youngest == nullptr; ++it) {
        bool gone = std::find(preempted.begin(), preempted.end(), it->get()) != preempted.end();
        if (!gone) youngest = it->get();
      }
      preempted.push_back(youngest);
      metrics_->preemptions.Increment();
      youngest->kv.reset();
      if (youngest == sequence) break;
      room = sequence->kv->ReserveAppend(stepper_.queues());
    }
    if (room.ok()) ready.push_back(sequence);
  }
  for (Running* gone : preempted) {
    ready.erase(std::remove(ready.begin(), ready.end(), gone), ready.end());
    Finish(gone,
           absl::AbortedError("preempted: the decode server ran out of KV pages; the router replays it"), {});
  }
  return ready;
}

void DecodeLoop::Step() {
  for (auto& running : running_) {
    if (running->generation != nullptr && running->generation->cancelled) {
      metrics_->cancelled_decode.Increment();
      Finish(running.get(), absl::CancelledError("cancelled"), {});
    }
  }
  auto drop_finished = [this] {
    running_.erase(std::remove_if(running_.begin(), running_.end(),
                                  [](const auto& running) { return running->generation == nullptr; }),
                   running_.end());
    running_count_ = static_cast<int>(running_.size());
    next_ = running_.empty() ? 0 : next_ % running_.size();
    CountPages();
  };
  drop_finished();

  std::vector<Running*> batch = PickBatch();
  if (batch.empty()) {
    drop_finished();
    if (!running_.empty()) absl::SleepFor(kPausedWait);  // every reader lags
    return;
  }
  CountPages();
  std::vector<RankedDecodeRow> rows;
  std::vector<SampleRule> rules(batch.size());
  for (size_t i = 0; i < batch.size(); ++i) {
    const Running& sequence = *batch[i];
    const SamplingParams& sampling = sequence.generation->sampling;
    const bool biased = !sampling.logit_bias.empty();
    const bool draws = !biased && !ForcedToken(sampling, sequence.index + 1).has_value() &&
                       !TakesBest(sampling, sequence.index + 1);
    if (draws) rules[i] = RuleFor(sampling, sequence.state, sequence.index + 1);
    rows.push_back({.kv = sequence.kv.get(),
                    .selection = sequence.generation->gates.selection.kind,
                    .token = sequence.token,
                    .position = sequence.position,
                    .rule = draws ? &rules[i] : nullptr,
                    .wants_logits = sampling.logprobs || biased});
  }
  const absl::Time begin = clock_->Now();
  absl::StatusOr<std::vector<DecodeResult>> results = stepper_.Run(rows);
  metrics_->step_seconds.Observe(absl::ToDoubleSeconds(clock_->Now() - begin));
  metrics_->batch_size.Observe(static_cast<double>(batch.size()));
  metrics_->last_forward_timestamp_seconds.Set(UnixNow());
  if (!results.ok()) {
    spdlog::error("decode step failed batch={} error=\"{}\"", batch.size(), results.status().ToString());
    for (Running* sequence : batch) Finish(sequence, results.status(), {});
    drop_finished();
    return;
  }
  for (size_t i = 0; i < batch.size(); ++i) {
    Running* sequence = batch[i];
    Generation& generation = *sequence->generation;
    ++sequence->steps;
    ++sequence->position;
    const int index = sequence->index + 1;
    const DecodeResult& result = (*results)[i];
    const SamplingParams& sampling = generation.sampling;
    const int32_t id = TokenOf(result, sampling, sequence->state, index);
    if (id < 0) {
      metrics_->non_finite_logits.Increment();
      Finish(sequence, absl::InternalError("non-finite logits"), {});
      continue;
    }
    sequence->token = id;
    sequence->index = index;
    sequence->state.AddOutput(id);
    std::optional<TokenLogprobs> logprobs;
    if (sampling.logprobs) logprobs = LogprobsOf(result.logits, id, sampling.top_logprobs);
    generation.sink->OnToken(index, id, logprobs.has_value() ? &*logprobs : nullptr);
    GenerationEnd end;
    end.decode_time = clock_->Now() - sequence->started;
    end.steps = sequence->steps;
    StopReason stop = CheckStop(id, sampling, index);
    if (stop == StopReason::kStopId) {
      end.reason = GenerationEnd::kStopId;
      end.stop_id = id;
    } else if (stop == StopReason::kLength) {
      end.reason = GenerationEnd::kLength;
    } else if (sequence->position.value() >= model_->shape().context) {
      end.reason = GenerationEnd::kContextFull;
    } else {
      continue;
    }
    Finish(sequence, absl::OkStatus(), end);
  }
  drop_finished();
}

void DecodeLoop::Finish(Running* running, const absl::Status& status, const GenerationEnd& end) {
  std::shared_ptr<Generation> generation = std::move(running->generation);
  if (generation == nullptr) return;
  running->generation = nullptr;
  running->kv.reset();  // pages are free before the client hears of the end
  table_->Remove(generation->key);
  if (status.ok()) {
    generation->sink->OnEnd(end);
  } else {
    generation->sink->OnError(status);
  }
}

}  // namespace sluice
