// Role: where the events of a reply go: a stream of them, or one message made of them. Why abstract: unary is
// the concatenation of the stream by construction. Threads: Send, Finish and backlog_bytes on the run's
// strand.
#pragma once

#include <cstddef>

#include "absl/status/status.h"
#include "sluice/v1/inference.pb.h"

namespace sluice {

class ReplySink {
 public:
  virtual ~ReplySink() = default;
  virtual void Send(const v1::ChatEvent& event) = 0;
  // Once and last. What the client has not taken yet is dropped.
  virtual void Finish(const absl::Status& status) = 0;
  // Sent, and not taken by the client yet.
  virtual size_t backlog_bytes() const = 0;
};

}  // namespace sluice
