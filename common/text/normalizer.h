// Role: the rewriting of text before it is cut into words. Marks travel with the text.
// Threads: immutable; Apply from any thread.
#pragma once

#include <string>
#include <vector>

#include "common/text/marked_text.h"

namespace sluice {

struct NormalizerStep {
  enum Kind { kNfc, kNfd, kNfkc, kNfkd, kPrepend, kReplace } kind;
  std::string from;  // kReplace: not empty
  std::string to;    // kReplace, kPrepend (before text that is not empty)
};

class Normalizer {
 public:
  Normalizer() = default;
  explicit Normalizer(std::vector<NormalizerStep> steps) : steps_(std::move(steps)) {}

  bool empty() const { return steps_.empty(); }
  const std::vector<NormalizerStep>& steps() const { return steps_; }
  // `text` is valid UTF-8 and stays so.
  MarkedText Apply(MarkedText text) const;

 private:
  std::vector<NormalizerStep> steps_;
};

}  // namespace sluice
