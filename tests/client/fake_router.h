// Role: the public services of a router with made-up answers, on a real port. An answer repeats the last line
// of the last message. Threads: gRPC's; the test's own for what it reads and sets.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "common/base/mutex.h"
#include "common/rpc/rpc_server.h"
#include "sluice/v1/admin.grpc.pb.h"
#include "sluice/v1/inference.grpc.pb.h"
#include "sluice/v1/models.grpc.pb.h"
#include "sluice/v1/sessions.grpc.pb.h"

namespace sluice {

class FakeRouter {
 public:
  FakeRouter();
  ~FakeRouter();

  std::string address() const;
  RpcServer* server() { return server_.get(); }

  // The next generations end with it, after one delta.
  void FailWith(absl::Status status);
  // The next generations send one delta and then wait for a cancel.
  void Hang();
  // The next generations answer so.
  void AnswerWith(std::string text);
  void AddWorker(const std::string& role, const std::string& state);
  std::map<std::string, std::string> workers() const;  // name -> state

  std::vector<v1::ChatRequest> chats() const;
  std::vector<v1::CompleteRequest> completes() const;
  int cancelled() const;
  std::map<std::string, int> sessions() const;  // id -> turns

 private:
  class Inference;
  class Sessions;
  class Models;
  class Admin;

  grpc::Status Generate(const std::string& prompt, grpc::ServerContext* context,
                        grpc::ServerWriter<v1::ChatEvent>* writer);

  mutable Mutex mu_;
  absl::Status fail_ ABSL_GUARDED_BY(mu_);
  bool hang_ ABSL_GUARDED_BY(mu_) = false;
  std::string answer_ ABSL_GUARDED_BY(mu_);
  int cancelled_ ABSL_GUARDED_BY(mu_) = 0;
  int next_session_ ABSL_GUARDED_BY(mu_) = 1;
  std::map<std::string, int> sessions_ ABSL_GUARDED_BY(mu_);
  std::vector<v1::ChatRequest> chats_ ABSL_GUARDED_BY(mu_);
  std::vector<v1::CompleteRequest> completes_ ABSL_GUARDED_BY(mu_);
  v1::ListWorkersResponse workers_ ABSL_GUARDED_BY(mu_);
  std::vector<std::unique_ptr<grpc::Service>> services_;
  std::unique_ptr<RpcServer> server_;
};

}  // namespace sluice
