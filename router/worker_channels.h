// Role: one gRPC channel to each worker, kept while the worker lives. Threads: any; one lock.
#pragma once

#include <grpcpp/channel.h>

#include <map>
#include <memory>
#include <set>
#include <string>

#include "common/base/mutex.h"

namespace sluice {

class WorkerChannels {
 public:
  std::shared_ptr<grpc::Channel> To(const std::string& address);
  // Channels to all but these are closed once their last call has ended.
  void KeepOnly(const std::set<std::string>& addresses);

 private:
  Mutex mu_;
  std::map<std::string, std::shared_ptr<grpc::Channel>> channels_ ABSL_GUARDED_BY(mu_);
};

}  // namespace sluice
