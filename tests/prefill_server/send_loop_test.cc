#include "prefill_server/send_loop.h"

#include <gtest/gtest.h>

#include "common/transport/transports.h"
#include "kernels/cpu/cpu_backend.h"

namespace sluice {
namespace {

TEST(SendLoopTest, ARingThatCannotBeHadIsAnError) {
  MetricsRegistry registry({"prefill", "m", "test"});
  PrefillMetrics metrics(&registry, PrefillLabels{{"full"}, TransportNames()});
  KvTransferMetrics transfer_metrics(&registry);
  const SteadyClock clock;
  HandoffSenderOptions options;
  options.shape = {1, 1, 1, 64, DType::kBF16};
  options.ring_slots = 0;
  const std::unique_ptr<Backend> backend = *NewCpuBackend({.threads = 1});
  auto loop = SendLoop::Create(options, *MakeTransport("loopback", {}), backend.get(), &clock, &metrics,
                               &transfer_metrics);
  EXPECT_TRUE(absl::IsInvalidArgument(loop.status())) << loop.status();
  EXPECT_NE(loop.status().message().find("ring_slots"), std::string::npos) << loop.status();
}

}  // namespace
}  // namespace sluice
