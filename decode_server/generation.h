// Role: one request on a decode server, from its registration to its last token, and the table that the RPC
// threads, the transfer loop and the decode loop share it by. Threads: any; what only one loop touches says
// so.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/base/mutex.h"
#include "common/compression/resolved_gates.h"
#include "common/engine/logprobs.h"
#include "common/engine/sampler.h"
#include "common/handoff/messages.h"

namespace sluice {

struct GenerationEnd {
  enum Reason { kStopId, kLength, kContextFull };
  Reason reason = kLength;
  int32_t stop_id = -1;
  absl::Duration decode_time;
  int steps = 0;
};

// Where tokens go. Implemented by the RPC's reactor; any thread.
class TokenSink {
 public:
  virtual ~TokenSink() = default;
  // The hand-off is validated.
  virtual void OnReady(absl::Duration since_reserved) = 0;
  virtual void OnToken(int index, int32_t id, const TokenLogprobs* logprobs) = 0;  // null: not asked for
  // False: the reader lags far behind; decode pauses the sequence.
  virtual bool writable() const = 0;
  // Exactly one of these, once.
  virtual void OnEnd(const GenerationEnd& end) = 0;
  virtual void OnError(const absl::Status& status) = 0;
};

struct Generation {
  HandoffKey key;
  ResolvedGates gates;
  SamplingParams sampling;
  std::vector<int32_t> emitted;  // by earlier attempts
  std::shared_ptr<TokenSink> sink;
  absl::Time registered;
  std::atomic<bool> cancelled{false};
  absl::Time reserved;  // transfer loop
};

// Registered generations by key. A generation leaves when it ends or its client goes.
class GenerationTable {
 public:
  explicit GenerationTable(int capacity) : capacity_(capacity) {}
  // ResourceExhausted at capacity; AlreadyExists for a key that is registered.
  absl::Status Add(std::shared_ptr<Generation> generation);
  std::shared_ptr<Generation> Find(const HandoffKey& key) const;  // null: unknown
  void Remove(const HandoffKey& key);
  int size() const;

 private:
  const int capacity_;
  mutable Mutex mu_;
  std::map<HandoffKey, std::shared_ptr<Generation>> generations_ ABSL_GUARDED_BY(mu_);
};

}  // namespace sluice
