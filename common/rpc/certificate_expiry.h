// Role: shows as a metric when the certificate of a Tls expires, while it lives. Threads: that of the Tls.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "common/metrics/shared_families.h"
#include "common/rpc/tls.h"

namespace sluice {

class CertificateExpiry {
 public:
  // kind: "public" or "internal". Null: no TLS, no metric.
  CertificateExpiry(MetricsRegistry* registry, const std::string& kind, std::shared_ptr<Tls> tls)
      : tls_(std::move(tls)) {
    if (tls_ == nullptr) return;
    tls_->OnExpiry([gauge = families::CertificateExpiryTimestampSeconds(registry, kind)](absl::Time expires) {
      gauge.Set(absl::ToDoubleSeconds(expires - absl::UnixEpoch()));
    });
  }
  ~CertificateExpiry() {
    if (tls_ != nullptr) tls_->OnExpiry(nullptr);
  }
  CertificateExpiry(const CertificateExpiry&) = delete;
  CertificateExpiry& operator=(const CertificateExpiry&) = delete;

 private:
  const std::shared_ptr<Tls> tls_;
};

}  // namespace sluice
