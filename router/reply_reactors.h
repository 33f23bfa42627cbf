// Role: the two ReplySinks: the reactors of a streaming and of a unary RPC. Each deletes itself when gRPC is
// done with it. Threads: ReplySink's methods on the run's strand, the rest on gRPC's pool.
#pragma once

#include <google/protobuf/message.h>
#include <grpcpp/grpcpp.h>

#include <deque>
#include <memory>
#include <string>

#include "common/base/mutex.h"
#include "router/request_run.h"

namespace sluice {

std::string BytesOf(const grpc::ByteBuffer& buffer);
grpc::ByteBuffer ToBuffer(const google::protobuf::Message& message);

class StreamReply final : public grpc::ServerWriteReactor<grpc::ByteBuffer>, public ReplySink {
 public:
  // Before the run starts; the run is told of the client's leaving and of its reading.
  void Attach(std::shared_ptr<RequestRun> run);

  void Send(const v1::ChatEvent& event) override;
  void Finish(const absl::Status& status) override;
  size_t backlog_bytes() const override;

 private:
  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override { delete this; }
  void WriteNext() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  mutable Mutex mu_;
  std::shared_ptr<RequestRun> run_ ABSL_GUARDED_BY(mu_);
  std::deque<grpc::ByteBuffer> queue_ ABSL_GUARDED_BY(mu_);  // the front one is being written
  size_t backlog_ ABSL_GUARDED_BY(mu_) = 0;
  bool broken_ ABSL_GUARDED_BY(mu_) = false;
  bool finished_ ABSL_GUARDED_BY(mu_) = false;
};

class UnaryReply final : public grpc::ServerUnaryReactor, public ReplySink {
 public:
  explicit UnaryReply(grpc::ByteBuffer* response) : response_(response) {}
  void Attach(std::shared_ptr<RequestRun> run);

  void Send(const v1::ChatEvent& event) override;
  void Finish(const absl::Status& status) override;
  size_t backlog_bytes() const override { return 0; }

 private:
  void OnCancel() override;
  void OnDone() override { delete this; }

  grpc::ByteBuffer* const response_;
  v1::ChatResponse sum_;  // on the strand
  Mutex mu_;
  std::shared_ptr<RequestRun> run_ ABSL_GUARDED_BY(mu_);
};

}  // namespace sluice
