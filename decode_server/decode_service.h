// Role: the decode server's RPCs: Generate (the router's token stream) and Connect (prefill's control stream
// of the hand-off). Translates between protobuf and native, holds no policy. Threads: gRPC's callback pool; a
// stream costs memory, never a thread.
#pragma once

#include <atomic>
#include <memory>
#include <string>

#include "common/base/clock.h"
#include "decode_server/generation.h"
#include "decode_server/receive_loop.h"
#include "sluice/internal/v1/handoff.grpc.pb.h"
#include "sluice/internal/v1/worker.grpc.pb.h"

namespace sluice {

class GenerateService final : public internal::v1::DecodeWorker::CallbackService {
 public:
  GenerateService(GenerationTable* table, ReceiveLoop* receive_loop, const Clock* clock)
      : table_(table), receive_loop_(receive_loop), clock_(clock) {}

  grpc::ServerWriteReactor<internal::v1::GenerateEvent>* Generate(
      grpc::CallbackServerContext* context, const internal::v1::GenerateRequest* request) override;

 private:
  GenerationTable* const table_;
  ReceiveLoop* const receive_loop_;
  const Clock* const clock_;
};

class HandoffService final : public internal::v1::KvHandoff::CallbackService {
 public:
  explicit HandoffService(ReceiveLoop* receive_loop) : receive_loop_(receive_loop) {}

  grpc::ServerBidiReactor<internal::v1::HandoffMessage, internal::v1::HandoffMessage>* Connect(
      grpc::CallbackServerContext* context) override;

 private:
  ReceiveLoop* const receive_loop_;
  std::atomic<int> next_peer_{1};
};

}  // namespace sluice
