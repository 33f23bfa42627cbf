// Role: where a load's dialogues and, if it has any, their arrivals come from: made up, from a file, or from
// a trace. Threads: one.
#pragma once

#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "client/load_prompts.h"
#include "client/load_schedule.h"

namespace sluice {

class LoadSource {
 public:
  virtual ~LoadSource() = default;

  // Dialogue `index` of run `run`. A warm-up is a run of its own.
  virtual Dialogue At(uint64_t run, uint64_t index) const = 0;
  // Mean: a rate is of requests, arrivals are of dialogues.
  virtual double TurnsPerDialogue() const { return 1; }
  // When its dialogues arrive, from the first on; null: it does not say.
  virtual Arrivals OwnArrivals() const { return nullptr; }
  // The most requests that it has; unset: no end.
  virtual std::optional<int> Requests() const { return std::nullopt; }
  // What it is, for people.
  virtual std::string Title() const = 0;
  virtual void AddParameters(nlohmann::ordered_json* parameters) const = 0;
};

// What the model makes of made-up words is measured only where it is asked for. `context`: of the model
// [tokens], 0 unknown.
using MeasureFit = std::function<absl::StatusOr<TokenFit>()>;

// output_tokens: of each turn.
absl::StatusOr<std::unique_ptr<LoadSource>> MadeUpPrompts(const SyntheticShape& shape, int output_tokens,
                                                          int64_t context, const MeasureFit& measure);
absl::StatusOr<std::unique_ptr<LoadSource>> FilePrompts(const std::string& path);

struct TraceOptions {
  std::string path;
  double speed = 1;             // arrivals so many times as fast
  std::optional<double> scale;  // of lengths; unset: ScaleThatFits
  uint64_t seed = 0;
};
absl::StatusOr<std::unique_ptr<LoadSource>> TracePrompts(const TraceOptions& options, int64_t context,
                                                         const MeasureFit& measure);

}  // namespace sluice
