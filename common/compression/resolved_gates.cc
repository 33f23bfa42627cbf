#include "common/compression/resolved_gates.h"

namespace sluice {
namespace {

// By enumerator.
constexpr const char* kOffCauseNames[] = {"short_prompt", "history_keep", "later_turn", "unknown_layer",
                                          "sliding_window"};

}  // namespace

const char* OffCauseName(OffCause cause) { return kOffCauseNames[static_cast<int>(cause)]; }

std::vector<std::string> OffCauseNames() { return {std::begin(kOffCauseNames), std::end(kOffCauseNames)}; }

}  // namespace sluice
