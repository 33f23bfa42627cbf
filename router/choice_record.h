// Role: what is measured of one choice: when its tokens came, and what its workers reported.
// Threads: the request's strand.
#pragma once

#include <cstddef>
#include <optional>

#include "absl/time/time.h"
#include "router/run_services.h"
#include "sluice/internal/v1/worker.pb.h"

namespace sluice {

class ChoiceRecord {
 public:
  explicit ChoiceRecord(const RunServices* services) : services_(services) {}

  void Paired();                                           // the first attempt's counts
  void FirstToken(const internal::v1::FirstToken& first);  // likewise
  void HandedOff(const internal::v1::HandedOff& handed_off) { handed_off_ = handed_off; }
  void Measured(const v1::CompressionLoss& loss) { loss_ = loss; }
  void Generated(const internal::v1::Generated& generated) { generated_ = generated; }
  // came: tokens that came at once; taken: those of them before a stop string ended the text.
  void Emitted(size_t came, size_t taken);
  void DeltaSent();

  int tokens() const { return tokens_; }
  std::optional<absl::Time> paired() const { return paired_; }
  std::optional<absl::Time> first_delta() const { return first_delta_; }
  std::optional<absl::Time> last_emitted() const { return last_emitted_; }
  const internal::v1::FirstToken& first() const { return first_; }
  const std::optional<internal::v1::HandedOff>& handed_off() const { return handed_off_; }
  const std::optional<v1::CompressionLoss>& loss() const { return loss_; }
  const internal::v1::Generated& generated() const { return generated_; }

 private:
  const RunServices* const services_;
  int tokens_ = 0;
  std::optional<absl::Time> paired_, first_delta_, last_emitted_;
  bool first_seen_ = false;
  internal::v1::FirstToken first_;
  std::optional<internal::v1::HandedOff> handed_off_;
  std::optional<v1::CompressionLoss> loss_;
  internal::v1::Generated generated_;
};

}  // namespace sluice
