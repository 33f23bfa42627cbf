#include "router/worker_channels.h"

#include <utility>

namespace sluice {
namespace {

constexpr int kMaxMessageBytes = 64 << 20;
constexpr int kKeepaliveMs = 10000;        // a silent peer is probed
constexpr int kKeepaliveTimeoutMs = 5000;  // and given up
constexpr int kMaxReconnectMs = 1000;

}  // namespace

std::shared_ptr<grpc::Channel> WorkerChannels::To(const std::string& address) {
  const int generation = tls_ == nullptr ? 0 : tls_->generation();
  MutexLock lock(&mu_);
  Entry& entry = channels_[address];
  if (entry.channel == nullptr || entry.generation != generation) {
    grpc::ChannelArguments args;
    args.SetMaxReceiveMessageSize(kMaxMessageBytes);
    args.SetMaxSendMessageSize(kMaxMessageBytes);
    args.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, kKeepaliveMs);
    args.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kKeepaliveTimeoutMs);
    args.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
    args.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, kMaxReconnectMs);
    args.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    entry = {OpenChannel(address, tls_.get(), std::move(args)), generation};
  }
  return entry.channel;
}

void WorkerChannels::KeepOnly(const std::set<std::string>& addresses) {
  MutexLock lock(&mu_);
  for (auto it = channels_.begin(); it != channels_.end();) {
    it = addresses.count(it->first) ? std::next(it) : channels_.erase(it);
  }
}

}  // namespace sluice
