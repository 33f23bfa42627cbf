// Role: the prefill server's RPC. Translates between protobuf and native, holds no policy.
// Threads: gRPC's callback pool; a stream costs memory, never a thread.
#pragma once

#include "common/base/clock.h"
#include "prefill_server/prefill_loop.h"
#include "prefill_server/send_loop.h"
#include "sluice/internal/v1/worker.grpc.pb.h"

namespace sluice {

class PrefillService final : public internal::v1::PrefillWorker::CallbackService {
 public:
  PrefillService(const RankedModel* model, PrefillLoop* prefill_loop, SendLoop* send_loop, const Clock* clock)
      : model_(model), prefill_loop_(prefill_loop), send_loop_(send_loop), clock_(clock) {}

  grpc::ServerWriteReactor<internal::v1::PrefillEvent>* Prefill(
      grpc::CallbackServerContext* context, const internal::v1::PrefillRequest* request) override;
  grpc::ServerUnaryReactor* Forget(grpc::CallbackServerContext* context,
                                   const internal::v1::ForgetRequest* request,
                                   internal::v1::ForgetResponse* response) override;

 private:
  absl::StatusOr<PrefillRequest> Check(const internal::v1::PrefillRequest& request) const;

  const RankedModel* const model_;
  PrefillLoop* const prefill_loop_;
  SendLoop* const send_loop_;
  const Clock* const clock_;
};

}  // namespace sluice
