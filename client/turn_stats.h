// Role: what one answer cost, for people and for programs. Threads: pure functions.
#pragma once

#include <string>

#include "client/generation.h"

namespace sluice {

// One line, no line feed: tokens, KV kept and read, bytes on the wire, times, method.
std::string StatsLine(const v1::Done& done);

// One line of JSON, no line feed: answer, prompt_tokens, cached_tokens, kept_tokens_mean, read_tokens,
// kv_bytes_full, kv_bytes_kept, wire_bytes, ttft_seconds, tpot_seconds, method, off_reason,
// finish_reason, others (with several choices: answer and finish_reason of each but the first), and the
// session_id of a turn.
std::string StatsJson(const Generation& generation, const std::string& session_id = "");

}  // namespace sluice
