#include "router/worker_channels.h"

#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>

namespace sluice {
namespace {

constexpr int kMaxMessageBytes = 64 << 20;
constexpr int kKeepaliveMs = 10000;        // a silent peer is probed
constexpr int kKeepaliveTimeoutMs = 5000;  // and given up
constexpr int kMaxReconnectMs = 1000;

}  // namespace

std::shared_ptr<grpc::Channel> WorkerChannels::To(const std::string& address) {
  MutexLock lock(&mu_);
  std::shared_ptr<grpc::Channel>& channel = channels_[address];
  if (channel == nullptr) {
    grpc::ChannelArguments args;
    args.SetMaxReceiveMessageSize(kMaxMessageBytes);
    args.SetMaxSendMessageSize(kMaxMessageBytes);
    args.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, kKeepaliveMs);
    args.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kKeepaliveTimeoutMs);
    args.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
    args.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, kMaxReconnectMs);
    args.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    channel = grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), args);
  }
  return channel;
}

void WorkerChannels::KeepOnly(const std::set<std::string>& addresses) {
  MutexLock lock(&mu_);
  for (auto it = channels_.begin(); it != channels_.end();) {
    it = addresses.count(it->first) ? std::next(it) : channels_.erase(it);
  }
}

}  // namespace sluice
