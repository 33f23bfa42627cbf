// Role: the public Inference service: bytes in, a RequestRun, events out. Chat and Complete collect what
// their stream twins stream. Threads: gRPC's callback pool; nothing here blocks.
#pragma once

#include <grpcpp/grpcpp.h>

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "router/request_run.h"
#include "sluice/v1/inference.grpc.pb.h"

namespace sluice {

// Requests come as bytes (see request_parser.h).
using RawInference =
    v1::Inference::WithRawCallbackMethod_Chat<v1::Inference::WithRawCallbackMethod_ChatStream<
        v1::Inference::WithRawCallbackMethod_Complete<v1::Inference::WithRawCallbackMethod_CompleteStream<
            v1::Inference::WithRawCallbackMethod_Tokenize<v1::Inference::WithRawCallbackMethod_Detokenize<
                v1::Inference::WithRawCallbackMethod_RenderTemplate<
                    v1::Inference::WithRawCallbackMethod_CountTokens<v1::Inference::Service>>>>>>>>;

class InferenceService final : public RawInference {
 public:
  explicit InferenceService(const RunServices* services) : services_(services) {}

  grpc::ServerUnaryReactor* Chat(grpc::CallbackServerContext* context, const grpc::ByteBuffer* request,
                                 grpc::ByteBuffer* response) override;
  grpc::ServerWriteReactor<grpc::ByteBuffer>* ChatStream(grpc::CallbackServerContext* context,
                                                         const grpc::ByteBuffer* request) override;
  grpc::ServerUnaryReactor* Complete(grpc::CallbackServerContext* context, const grpc::ByteBuffer* request,
                                     grpc::ByteBuffer* response) override;
  grpc::ServerWriteReactor<grpc::ByteBuffer>* CompleteStream(grpc::CallbackServerContext* context,
                                                             const grpc::ByteBuffer* request) override;

  // No request for workers: answered from text_calls.h, on the work pool.
  grpc::ServerUnaryReactor* Tokenize(grpc::CallbackServerContext* context, const grpc::ByteBuffer* request,
                                     grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* Detokenize(grpc::CallbackServerContext* context, const grpc::ByteBuffer* request,
                                       grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* RenderTemplate(grpc::CallbackServerContext* context,
                                           const grpc::ByteBuffer* request,
                                           grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* CountTokens(grpc::CallbackServerContext* context, const grpc::ByteBuffer* request,
                                        grpc::ByteBuffer* response) override;

  // The RPCs that make requests, as metrics label them.
  static std::vector<std::string> Methods();

 private:
  template <class Request, class Response>
  grpc::ServerUnaryReactor* AnswerText(grpc::CallbackServerContext* context, const grpc::ByteBuffer* request,
                                       grpc::ByteBuffer* response,
                                       absl::StatusOr<Response> (*call)(const ServedModel&, const Request&));

  const RunServices* const services_;
};

}  // namespace sluice
