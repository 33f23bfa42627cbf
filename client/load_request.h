// Role: one streamed request of a load and its times.
// Threads: made, started and read by one; between Start and `done` gRPC's own threads write the record.
#pragma once

#include <grpcpp/grpcpp.h>

#include <functional>
#include <memory>

#include "client/connection.h"
#include "client/load_record.h"
#include "sluice/v1/inference.grpc.pb.h"

namespace sluice {

class LoadRequest final : private grpc::ClientReadReactor<v1::ChatEvent> {
 public:
  // origin: what the record's times count from. Both outlive the request.
  LoadRequest(const Connection* connection, v1::ChatRequest request, absl::Time origin)
      : connection_(*connection), request_(std::move(request)), origin_(origin) {}

  // `done` is called once, from a thread of gRPC's; nothing touches the request after it.
  void Start(v1::Inference::Stub* stub, std::function<void()> done);
  void Cancel() { context_.TryCancel(); }

  // After `done`.
  RequestRecord& record() { return record_; }

 private:
  void OnReadDone(bool ok) override;
  void OnDone(const grpc::Status& status) override;

  const Connection& connection_;
  const v1::ChatRequest request_;
  const absl::Time origin_;
  std::function<void()> done_;
  grpc::ClientContext context_;
  v1::ChatEvent event_;
  RequestRecord record_;
};

}  // namespace sluice
