// What a scrape says of GPUs, read from a library with NVML's names.
#include "common/metrics/gpu_stats.h"

#include "common/metrics/metrics.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/common/metrics/scrape.h"

namespace sluice {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

const std::vector<std::string> kAddresses = {"0000:17:00.0", "0000:65:00.0", "0000:99:00.0"};

TEST(GpuStatsTest, AScrapeSaysWhatTheDriverTellsAndNoMore) {
  MetricsRegistry registry({"decode", "needle-14m", "0.1.0"});
  registry.WatchGpus(kAddresses, SLUICE_FAKE_NVML);
  const Scrape scrape = ParseScrape(registry.Render());
  const std::string first = kAddresses[0], second = kAddresses[1];
  EXPECT_EQ(scrape.Value("sluice_gpu_utilization_ratio", {{"gpu", first}}), .42);
  EXPECT_EQ(scrape.Value("sluice_gpu_temperature_celsius", {{"gpu", first}}), 55);
  EXPECT_EQ(scrape.Value("sluice_gpu_memory_bytes", {{"gpu", first}, {"kind", "used"}}), 6e10);
  EXPECT_EQ(scrape.Value("sluice_gpu_memory_bytes", {{"gpu", first}, {"kind", "total"}}), 1.5e11);
  EXPECT_EQ(scrape.Value("sluice_gpu_memory_bytes", {{"gpu", second}, {"kind", "used"}}), 1e9);
  EXPECT_FALSE(scrape.Value("sluice_gpu_utilization_ratio", {{"gpu", second}}).has_value());
  EXPECT_FALSE(scrape.Value("sluice_gpu_temperature_celsius", {{"gpu", second}}).has_value());
  EXPECT_THAT(registry.Render(), Not(HasSubstr("0000:99")));
}

TEST(GpuStatsTest, TheLibraryIsStartedAnewByTheNextReader) {
  for (int i = 0; i < 2; ++i) {
    auto reader = GpuReader::Open(kAddresses, SLUICE_FAKE_NVML);
    ASSERT_TRUE(reader.ok()) << reader.status();
    EXPECT_EQ((*reader)->Read().size(), 2u);
  }
}

TEST(GpuStatsTest, WithoutAGpuThereIsNoSeries) {
  MetricsRegistry registry({"decode", "needle-14m", "0.1.0"});
  registry.WatchGpus({}, SLUICE_FAKE_NVML);
  EXPECT_THAT(registry.Render(), Not(HasSubstr("sluice_gpu_")));
  registry.WatchGpus(kAddresses, "libsluice-no-such-library.so");
  EXPECT_THAT(registry.Render(), Not(HasSubstr("sluice_gpu_")));
}

TEST(GpuStatsTest, ALibraryThatIsNotNvmlIsRefused) {
  EXPECT_EQ(GpuReader::Open(kAddresses, "libm.so.6").status().code(), absl::StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace sluice
