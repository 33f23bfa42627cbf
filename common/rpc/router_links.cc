#include "common/rpc/router_links.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <utility>

#include "absl/time/clock.h"

namespace sluice {
namespace {

constexpr absl::Duration kLook = absl::Milliseconds(20);

}  // namespace

RouterLinks::RouterLinks(const std::vector<std::string>& routers, const internal::v1::WorkerReport& identity,
                         WorkerRegistration::LoadFn load, DecodesFn decodes, const std::shared_ptr<Tls>& tls)
    : load_(std::move(load)), decodes_(std::move(decodes)) {
  MutexLock lock(&mu_);
  links_.resize(routers.size());
  for (size_t i = 0; i < routers.size(); ++i) {
    links_[i].registration = std::make_unique<WorkerRegistration>(
        routers[i], identity,
        [this] {
          internal::v1::WorkerLoad load = load_();
          load.set_draining(draining_);
          return load;
        },
        [this, i](const internal::v1::RegistryReply& reply) { Heard(i, reply); }, tls);
  }
}

RouterLinks::~RouterLinks() { Stop(); }

void RouterLinks::Heard(size_t router, const internal::v1::RegistryReply& reply) {
  std::vector<std::string> decodes;  // in the order of their first mention
  {
    MutexLock lock(&mu_);
    links_[router].knows = reply.draining();
    links_[router].decodes.assign(reply.decode_addresses().begin(), reply.decode_addresses().end());
    for (const Link& link : links_) {
      for (const std::string& address : link.decodes) {
        if (std::find(decodes.begin(), decodes.end(), address) == decodes.end()) decodes.push_back(address);
      }
    }
    if (reply.order() == internal::v1::RegistryReply::DRAIN) SetDraining(true);
    if (reply.order() == internal::v1::RegistryReply::UNDRAIN && !ending_) SetDraining(false);
  }
  if (decodes_ != nullptr) decodes_(std::move(decodes));
}

void RouterLinks::SetDraining(bool on) {
  if (draining_.exchange(on) == on) return;
  spdlog::info(on ? "draining: no new requests" : "undrained");
  for (const Link& link : links_) link.registration->ReportNow();
}

bool RouterLinks::AllKnow() const {
  MutexLock lock(&mu_);
  for (const Link& link : links_) {
    if (!link.knows && link.registration->connected()) return false;
  }
  return true;
}

int RouterLinks::Left() const {
  const internal::v1::WorkerLoad load = load_();
  return load.running() + load.queued();
}

int RouterLinks::Drain(absl::Duration at_most) {
  const absl::Time until = absl::Now() + at_most;
  {
    MutexLock lock(&mu_);
    ending_ = true;
    SetDraining(true);
  }
  while ((!AllKnow() || Left() > 0) && absl::Now() < until) absl::SleepFor(kLook);
  return Left();
}

void RouterLinks::Stop() {
  // Not under the lock: a registration ends when its last reply has been heard. The vector itself is
  // constant.
  std::vector<WorkerRegistration*> registrations;
  {
    MutexLock lock(&mu_);
    for (const Link& link : links_) registrations.push_back(link.registration.get());
  }
  for (WorkerRegistration* registration : registrations) registration->Stop();
}

}  // namespace sluice
