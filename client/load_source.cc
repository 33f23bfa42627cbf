#include "client/load_source.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/load_trace.h"
#include "common/base/status.h"

namespace sluice {
namespace {

class Synthetic final : public LoadSource {
 public:
  Synthetic(const SyntheticShape& shape, const TokenFit& fit) : shape_(shape), fit_(fit) {}

  Dialogue At(uint64_t run, uint64_t index) const override {
    return SyntheticDialogue(shape_, fit_, run, index);
  }
  double TurnsPerDialogue() const override { return shape_.turns; }
  std::string Title() const override {
    return absl::StrCat("prompts of ", shape_.prompt_tokens, " tokens",
                        shape_.turns > 1 ? absl::StrCat(", ", shape_.turns, " turns") : "");
  }
  void AddParameters(nlohmann::ordered_json* parameters) const override {
    (*parameters)["prompt_tokens"] = shape_.prompt_tokens;
    (*parameters)["shared_prefix_tokens"] = shape_.shared_prefix_tokens;
    (*parameters)["turns"] = shape_.turns;
    (*parameters)["turn_tokens"] = shape_.turn_tokens;
  }

 private:
  const SyntheticShape shape_;
  const TokenFit fit_;
};

class File final : public LoadSource {
 public:
  File(std::string path, std::vector<Dialogue> dialogues)
      : path_(std::move(path)), dialogues_(std::move(dialogues)) {}

  Dialogue At(uint64_t run, uint64_t index) const override { return dialogues_[index % dialogues_.size()]; }
  double TurnsPerDialogue() const override {
    size_t turns = 0;
    for (const Dialogue& dialogue : dialogues_) turns += dialogue.turns.size();
    return static_cast<double>(turns) / static_cast<double>(dialogues_.size());
  }
  std::string Title() const override { return absl::StrCat("prompts of ", path_); }
  void AddParameters(nlohmann::ordered_json* parameters) const override { (*parameters)["prompts"] = path_; }

 private:
  const std::string path_;
  const std::vector<Dialogue> dialogues_;
};

class TraceReplay final : public LoadSource {
 public:
  TraceReplay(const TraceOptions& options, std::vector<TraceRequest> trace, double scale, const TokenFit& fit)
      : options_(options), trace_(std::move(trace)), scale_(scale), fit_(fit) {}

  // From the first on again after the last: a warm-up may be longer than the trace.
  Dialogue At(uint64_t run, uint64_t index) const override {
    return TraceDialogue(trace_[index % trace_.size()], scale_, fit_, options_.seed, run);
  }
  Arrivals OwnArrivals() const override {
    return [this, next = size_t{0}]() mutable -> std::optional<absl::Duration> {
      if (next == trace_.size()) return std::nullopt;
      return trace_[next++].arrival / options_.speed;
    };
  }
  std::optional<int> Requests() const override { return static_cast<int>(trace_.size()); }
  std::string Title() const override {
    return absl::StrFormat("trace %s, lengths x %.4g", options_.path, scale_);
  }
  void AddParameters(nlohmann::ordered_json* parameters) const override {
    (*parameters)["trace"] = options_.path;
    (*parameters)["trace_speed"] = options_.speed;
    (*parameters)["trace_scale"] = scale_;
  }

 private:
  const TraceOptions options_;
  const std::vector<TraceRequest> trace_;
  const double scale_;
  const TokenFit fit_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<LoadSource>> MadeUpPrompts(const SyntheticShape& shape, int output_tokens,
                                                          int64_t context, const MeasureFit& measure) {
  const int64_t need = int64_t{shape.prompt_tokens} + int64_t{shape.turns - 1} * shape.turn_tokens +
                       int64_t{shape.turns} * output_tokens;
  if (context > 0 && need > context) {
    return absl::InvalidArgumentError(
        absl::StrCat("--prompt-tokens ", shape.prompt_tokens,
                     ": with --output-tokens, --turns and --turn-tokens it comes to ", need,
                     " tokens; the model reads ", context));
  }
  SLUICE_ASSIGN_OR_RETURN(const TokenFit fit, measure());
  return std::make_unique<Synthetic>(shape, fit);
}

absl::StatusOr<std::unique_ptr<LoadSource>> FilePrompts(const std::string& path) {
  SLUICE_ASSIGN_OR_RETURN(std::vector<Dialogue> dialogues, ReadDialogues(path));
  return std::make_unique<File>(path, std::move(dialogues));
}

absl::StatusOr<std::unique_ptr<LoadSource>> TracePrompts(const TraceOptions& options, int64_t context,
                                                         const MeasureFit& measure) {
  SLUICE_ASSIGN_OR_RETURN(std::vector<TraceRequest> trace, ReadTrace(options.path));
  const double fits = ScaleThatFits(trace, context);
  const double scale = options.scale.value_or(fits);
  if (context > 0 && scale > fits) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "--trace-scale %g: the longest request of %s would not fit the %d tokens that the model reads; "
        "want at most %.4f",
        scale, options.path, context, fits));
  }
  SLUICE_ASSIGN_OR_RETURN(const TokenFit fit, measure());
  return std::make_unique<TraceReplay>(options, std::move(trace), scale, fit);
}

}  // namespace sluice
