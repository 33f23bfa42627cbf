// Role: one gRPC channel to each worker, kept while the worker lives. Threads: any; one lock.
#pragma once

#include <grpcpp/channel.h>

#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>

#include "common/base/mutex.h"
#include "common/rpc/tls.h"

namespace sluice {

class WorkerChannels {
 public:
  // tls: null for none.
  explicit WorkerChannels(std::shared_ptr<Tls> tls) : tls_(std::move(tls)) {}

  // With new certificates there is a new channel; calls on the old one go on.
  std::shared_ptr<grpc::Channel> To(const std::string& address);
  // Channels to all but these are closed once their last call has ended.
  void KeepOnly(const std::set<std::string>& addresses);

 private:
  struct Entry {
    std::shared_ptr<grpc::Channel> channel;
    int generation = 0;  // of the certificates
  };
  const std::shared_ptr<Tls> tls_;
  Mutex mu_;
  std::map<std::string, Entry> channels_ ABSL_GUARDED_BY(mu_);
};

}  // namespace sluice
