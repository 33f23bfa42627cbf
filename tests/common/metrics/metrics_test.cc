// The registry, its HTTP endpoint, and what it says about the process.
#include "common/metrics/metrics.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <ctime>
#include <thread>

#include "common/metrics/process_stats.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/common/metrics/scrape.h"

namespace sluice {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

const MetricsIdentity kIdentity{"router", "needle-14m", "0.1.0"};

// The whole answer of the server on 127.0.0.1:port.
std::string Http(int port, const std::string& method, const std::string& path) {
  int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  EXPECT_EQ(connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  const std::string request = method + " " + path + " HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
  EXPECT_EQ(write(fd, request.data(), request.size()), static_cast<ssize_t>(request.size()));
  std::string answer;
  char buffer[4096];
  for (ssize_t n; (n = read(fd, buffer, sizeof(buffer))) > 0;) answer.append(buffer, n);
  close(fd);
  return answer;
}

TEST(MetricsRegistryTest, HandlesCount) {
  MetricsRegistry registry(kIdentity);
  Counter counter = registry.AddCounter("sluice_x_total", "x.");
  Gauge gauge = registry.AddGauge("sluice_y", "y.");
  Histogram histogram = registry.AddHistogram("sluice_z_seconds", "z.", {.5, 2});
  counter.Increment();
  counter.Increment(2.5);
  gauge.Set(5);
  gauge.Add(-7);
  for (double value : {.1, .5, .6, 2.0, 9.0}) histogram.Observe(value);
  EXPECT_EQ(counter.Value(), 3.5);
  EXPECT_EQ(gauge.Value(), -2);
  const Scrape scrape = ParseScrape(registry.Render());
  EXPECT_EQ(scrape.Value("sluice_x_total", {}), 3.5);
  EXPECT_EQ(scrape.Value("sluice_y", {}), -2);
  // A bound belongs to its bucket.
  EXPECT_EQ(scrape.Value("sluice_z_seconds_bucket", {{"le", "0.5"}}), 2);
  EXPECT_EQ(scrape.Value("sluice_z_seconds_bucket", {{"le", "2"}}), 4);
  EXPECT_EQ(scrape.Value("sluice_z_seconds_bucket", {{"le", "+Inf"}}), 5);
  EXPECT_EQ(scrape.Value("sluice_z_seconds_count", {}), 5);
}

TEST(MetricsRegistryTest, NothingIsLostBetweenThreads) {
  MetricsRegistry registry(kIdentity);
  Labeled<Counter> counters = registry.AddCounters("sluice_x_total", "x.", "kind", {"a"});
  Histogram histogram = registry.AddHistogram("sluice_z_seconds", "z.", {1});
  std::atomic<bool> done = false;
  std::thread scraper([&] {
    while (!done) registry.Render();
  });
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 5000; ++i) {
        counters.At("a").Increment();
        histogram.Observe(2);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  done = true;
  scraper.join();
  const Scrape scrape = ParseScrape(registry.Render());
  EXPECT_EQ(scrape.Value("sluice_x_total", {{"kind", "a"}}), 40000);
  EXPECT_EQ(scrape.Value("sluice_x_total", {{"kind", "other"}}), 0);
  EXPECT_EQ(scrape.Value("sluice_z_seconds_count", {}), 40000);
}

TEST(MetricsServerTest, ServesTheScrapeOnAFreePort) {
  MetricsRegistry registry(kIdentity);
  Counter counter = registry.AddCounter("sluice_x_total", "x.");
  absl::StatusOr<int> port = registry.Serve("127.0.0.1:0", "--metrics-address");
  ASSERT_TRUE(port.ok()) << port.status();
  ASSERT_GT(*port, 0);
  counter.Increment(41);
  const std::string answer = Http(*port, "GET", "/metrics");
  EXPECT_THAT(answer, StartsWith("HTTP/1.1 200"));
  EXPECT_THAT(answer, HasSubstr("Content-Type: text/plain; version=0.0.4"));
  const std::string body = answer.substr(answer.find("\r\n\r\n") + 4);
  EXPECT_EQ(ParseScrape(body).Value("sluice_x_total", {}), 41);
  EXPECT_THAT(answer, HasSubstr("Content-Length: " + std::to_string(body.size())));
}

TEST(MetricsServerTest, ServesNothingElse) {
  MetricsRegistry registry(kIdentity);
  int port = *registry.Serve("127.0.0.1:0", "--metrics-address");
  for (const char* path : {"/", "/metricsx", "/metrics/x", "/etc/passwd", "/../../etc/passwd"}) {
    EXPECT_THAT(Http(port, "GET", path), Not(HasSubstr(" 200 "))) << path;
  }
  EXPECT_THAT(Http(port, "POST", "/metrics"), HasSubstr(" 405 "));
  const std::string head = Http(port, "HEAD", "/metrics");
  EXPECT_THAT(head, HasSubstr(" 200 "));
  EXPECT_THAT(head, Not(HasSubstr("sluice_")));
}

TEST(MetricsServerTest, TakenAddressNamesItAndTheFlag) {
  MetricsRegistry first(kIdentity), second(kIdentity);
  int port = *first.Serve("127.0.0.1:0", "--metrics-address");
  const std::string address = "127.0.0.1:" + std::to_string(port);
  absl::Status status = second.Serve(address, "--metrics-address").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()), HasSubstr(address));
  EXPECT_THAT(std::string(status.message()), HasSubstr("--metrics-address"));
  // The refused registry may try again elsewhere.
  EXPECT_TRUE(second.Serve("127.0.0.1:0", "--metrics-address").ok());
}

TEST(MetricsServerTest, PortIsFreeAgainWhenTheRegistryGoes) {
  std::string address;
  {
    MetricsRegistry registry(kIdentity);
    address = "127.0.0.1:" + std::to_string(*registry.Serve("127.0.0.1:0", "--metrics-address"));
  }
  MetricsRegistry registry(kIdentity);
  EXPECT_TRUE(registry.Serve(address, "--metrics-address").ok());
}

TEST(MetricsServerTest, BadAddressesAreRefused) {
  MetricsRegistry registry(kIdentity);
  for (const char* address : {"", "9090", ":9090", "127.0.0.1:", "127.0.0.1:65536", "127.0.0.1:-1",
                              "127.0.0.1:80s", "127.0.0.1:1,127.0.0.1:2", "127.0.0.1:99999999999"}) {
    absl::Status status = registry.Serve(address, "--metrics-address").status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << address;
    EXPECT_THAT(std::string(status.message()), HasSubstr("--metrics-address"));
  }
  absl::Status foreign = registry.Serve("192.0.2.1:9090", "--metrics-address").status();  // not ours to bind
  EXPECT_EQ(foreign.code(), absl::StatusCode::kUnavailable) << foreign;
}

TEST(ProcessStatsTest, SaysWhatTheKernelCounts) {
  ProcessStats before = *ReadProcessStats();
  EXPECT_GT(before.resident_memory_bytes, 1 << 20);
  const double now = static_cast<double>(time(nullptr));
  EXPECT_LE(before.start_time_seconds, now + 2);
  EXPECT_GT(before.start_time_seconds, now - 3600);

  int fds[2] = {open("/dev/null", O_RDONLY), open("/dev/null", O_RDONLY)};
  std::vector<char> memory(64 << 20, 1);
  const clock_t busy_until = clock() + CLOCKS_PER_SEC / 10;
  while (clock() < busy_until) {
  }
  ProcessStats after = *ReadProcessStats();
  EXPECT_EQ(after.open_fds, before.open_fds + 2);
  EXPECT_GE(after.resident_memory_bytes, before.resident_memory_bytes + (60 << 20));
  ASSERT_TRUE(before.network.has_value() && after.network.has_value());
  EXPECT_GE(after.network->received_bytes, before.network->received_bytes);
  EXPECT_GE(after.network->transmitted_bytes, before.network->transmitted_bytes);
  EXPECT_GE(after.max_fds, after.open_fds);
  EXPECT_GE(after.cpu_seconds, before.cpu_seconds + .05);
  EXPECT_LE(after.cpu_seconds, before.cpu_seconds + 60);
  EXPECT_EQ(after.start_time_seconds, before.start_time_seconds);
  for (int fd : fds) close(fd);

  MetricsRegistry registry(kIdentity);
  const Scrape scrape = ParseScrape(registry.Render());
  EXPECT_GT(scrape.Value("process_resident_memory_bytes", {}), 1 << 20);
  EXPECT_GE(scrape.Value("process_cpu_seconds_total", {}), after.cpu_seconds);
  EXPECT_EQ(scrape.Value("process_start_time_seconds", {}), before.start_time_seconds);
}

}  // namespace
}  // namespace sluice
