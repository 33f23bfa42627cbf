#include "common/compression/resolved_gates.h"

namespace sluice {
namespace {

// By enumerator.
constexpr const char* kPropagationNames[] = {"none", "tsp", "rerun"};
constexpr const char* kRetentionNames[] = {"full",  "snapkv", "streaming_llm", "chunkkv", "pyramidkv",
                                           "adakv", "h2o"};
constexpr const char* kSelectionNames[] = {
    "dense", "hsa", "quest", "sparq", "sparq_without_mean", "exact_topk", "exact_topk_group"};
constexpr const char* kHistoryNames[] = {"evict", "keep"};
constexpr const char* kOffCauseNames[] = {"short_prompt",  "history_keep",   "later_turn",
                                          "unknown_layer", "sliding_window", "dense_is_faster"};

}  // namespace

const char* NameOf(PropagationKind kind) { return kPropagationNames[static_cast<int>(kind)]; }
const char* NameOf(RetentionKind kind) { return kRetentionNames[static_cast<int>(kind)]; }
const char* NameOf(SelectionKind kind) { return kSelectionNames[static_cast<int>(kind)]; }
const char* NameOf(HistoryKind kind) { return kHistoryNames[static_cast<int>(kind)]; }

const char* OffCauseName(OffCause cause) { return kOffCauseNames[static_cast<int>(cause)]; }

std::vector<std::string> OffCauseNames() { return {std::begin(kOffCauseNames), std::end(kOffCauseNames)}; }

}  // namespace sluice
