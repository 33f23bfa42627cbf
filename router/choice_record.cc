#include "router/choice_record.h"

namespace sluice {

void ChoiceRecord::Paired() {
  if (!paired_.has_value()) paired_ = services_->clock->Now();
}

void ChoiceRecord::FirstToken(const internal::v1::FirstToken& first) {
  if (!first_seen_) first_ = first;
  first_seen_ = true;
}

void ChoiceRecord::Emitted(size_t came, size_t taken) {
  absl::Time now = services_->clock->Now();
  if (last_emitted_.has_value()) {
    services_->metrics->inter_token_seconds.Observe(absl::ToDoubleSeconds(now - *last_emitted_) / came);
  }
  last_emitted_ = now;
  tokens_ += static_cast<int>(taken);
}

void ChoiceRecord::DeltaSent() {
  if (!first_delta_.has_value()) first_delta_ = services_->clock->Now();
}

}  // namespace sluice
