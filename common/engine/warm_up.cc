#include "common/engine/warm_up.h"

#include "common/base/status.h"
#include "common/engine/ranked_prefill.h"

namespace sluice {
namespace {

class Forgets final : public RankedSink {
 public:
  bool wants_new_rows() const override { return false; }
  absl::Status OnNewRows(int, LayerId, TensorView, TensorView, Ops&) override { return absl::OkStatus(); }
  absl::Status OnKept(LayerId, KeptLayer) override { return absl::OkStatus(); }
};

}  // namespace

absl::Status WarmUpPrefill(const RankedModel& model) {
  constexpr int kTokens = 16;  // more than a decode step's product takes
  Forgets sink;
  RankedPrefillSequence sequence;
  sequence.ids.assign(kTokens, 0);
  sequence.sink = &sink;
  SLUICE_ASSIGN_OR_RETURN(std::unique_ptr<RankedPrefill> pass, RankedPrefill::Create(&model, {sequence}));
  while (!pass->done()) SLUICE_RETURN_IF_ERROR(pass->RunLayer());
  return pass->LastLogits(0).status();
}

}  // namespace sluice
