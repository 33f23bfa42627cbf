#include "prefill_server/prefill_job.h"

namespace sluice {

bool PrefillJob::Attach(Attempt attempt) {
  MutexLock lock(&mu_);
  if (attempt.number <= attempt_.number) return false;
  attempt_ = std::move(attempt);
  if (first_token_.has_value()) attempt_.events->OnFirstToken(*first_token_);
  return true;
}

void PrefillJob::Progress(bool running, int layers_done, int layers, int cached_tokens) {
  MutexLock lock(&mu_);
  attempt_.events->OnProgress(running, layers_done, layers, cached_tokens);
}

void PrefillJob::SetFirstToken(const FirstToken& token) {
  MutexLock lock(&mu_);
  first_token_ = token;
  attempt_.events->OnFirstToken(token);
}

void PrefillJob::SetHandedOff(const HandedOff& result) {
  MutexLock lock(&mu_);
  handed_off_ = true;
  attempt_.events->OnHandedOff(result);
  if (loss_.has_value()) attempt_.events->OnMeasured(*loss_);
}

bool PrefillJob::handed_off() const {
  MutexLock lock(&mu_);
  return handed_off_;
}

void PrefillJob::SetLoss(const CompressionLoss& loss) {
  if (!request.measure) return;
  MutexLock lock(&mu_);
  loss_ = loss;
  if (handed_off_) attempt_.events->OnMeasured(loss);
}

std::optional<FirstToken> PrefillJob::first_token() const {
  MutexLock lock(&mu_);
  return first_token_;
}

}  // namespace sluice
