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

std::optional<FirstToken> PrefillJob::first_token() const {
  MutexLock lock(&mu_);
  return first_token_;
}

}  // namespace sluice
