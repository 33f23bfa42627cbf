// Role: prefill and decode workers that a test scripts: real gRPC, no model. By default token i of a reply is
// reply[i], whatever the attempt, as a deterministic model would have it, and so are its log-probabilities.
// Threads: gRPC's; scripts run on them and must not block. A script may keep the streams and use them later.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/base/mutex.h"
#include "common/rpc/event_stream.h"
#include "common/rpc/router_links.h"
#include "common/rpc/rpc_server.h"
#include "sluice/internal/v1/worker.grpc.pb.h"

namespace sluice {

using PrefillStream = EventStream<internal::v1::PrefillEvent>;
using DecodeStream = EventStream<internal::v1::GenerateEvent>;

// What workers tell of the token at an output index where a request asks for it.
internal::v1::TokenLogprobs FakeLogprobs(int index, int32_t id, int top);

// One attempt as the workers see it.
struct FakeAttempt {
  bool tells_logprobs = true;
  int number = 0;  // of Prefill calls, from 1, over all workers
  std::string prefill_name, decode_name;
  internal::v1::PrefillRequest prefill_request;
  internal::v1::GenerateRequest generate_request;
  std::shared_ptr<PrefillStream> prefill;
  std::shared_ptr<DecodeStream> decode;

  void Progress(int layers_done, int layers) const;
  void FirstToken(int32_t id, bool ends = false, bool stopped = false) const;
  void HandedOff() const;  // and P's end
  // What a request that asks for it hears instead, in two parts; the second is P's end.
  void HandedOffAndMeasuring() const;
  void Measured(const v1::CompressionLoss& loss) const;
  void HandoffFailed(const std::string& reason, bool retained) const;
  void Receiving() const;
  void Tokens(int index, std::vector<int32_t> ids) const;
  void Generated(const std::string& finish, int stop_id = 0) const;  // and D's end
  // The rest of the reply from this attempt on, in the usual order.
  void Serve(const std::vector<int32_t>& reply, const std::string& finish = "stop") const;
  // Its first three tokens, then decode dies.
  void ServeThreeAndDie(const std::vector<int32_t>& reply) const;
};

class FakeWorkers {
 public:
  using Script = std::function<void(const FakeAttempt&)>;

  explicit FakeWorkers(internal::v1::ModelIdentity identity) : identity_(std::move(identity)) {}
  ~FakeWorkers();

  // Starts a worker and registers it with the router.
  void Add(const std::string& role, const std::string& name, int router_port);
  // Ends a worker as a crash would: its streams break, its registration too.
  void Kill(const std::string& name);
  // Ends a worker as a signal would.
  void Stop(const std::string& name);
  bool draining(const std::string& name) const { return workers_.at(name).routers->draining(); }

  void SetScript(Script script);
  // What a worker says of itself from now on; before, that it is ready and has nothing to do.
  void SetLoad(const std::string& name, internal::v1::WorkerLoad load);

  std::vector<FakeAttempt> attempts() const;  // in the order of their Prefill calls
  // Addresses of decode workers that the router named to this one last.
  std::vector<std::string> heard(const std::string& name) const;
  // What workers were told to forget, by name, in order; each answers that it freed 7 bytes.
  std::vector<std::pair<std::string, internal::v1::ForgetRequest>> forgotten() const;
  std::string address(const std::string& name) const;
  int cancelled_prefills() const;
  int cancelled_decodes() const;

 private:
  class PrefillService;
  class DecodeService;
  struct Worker {
    std::unique_ptr<grpc::Service> service;
    std::unique_ptr<RpcServer> server;
    std::unique_ptr<RouterLinks> routers;
  };

  const internal::v1::ModelIdentity identity_;
  std::map<std::string, Worker> workers_;
  int lives_ = 0;
  mutable Mutex mu_;
  Script script_ ABSL_GUARDED_BY(mu_);
  std::map<std::pair<std::string, int>, FakeAttempt> waiting_
      ABSL_GUARDED_BY(mu_);  // Generate came, Prefill not
  std::vector<FakeAttempt> attempts_ ABSL_GUARDED_BY(mu_);
  std::map<std::string, std::vector<std::string>> heard_ ABSL_GUARDED_BY(mu_);  // by name
  std::map<std::string, internal::v1::WorkerLoad> loads_ ABSL_GUARDED_BY(mu_);  // by name
  std::vector<std::pair<std::string, internal::v1::ForgetRequest>> forgotten_ ABSL_GUARDED_BY(mu_);
  int cancelled_prefills_ ABSL_GUARDED_BY(mu_) = 0;
  int cancelled_decodes_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace sluice
