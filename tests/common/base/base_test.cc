#include <gtest/gtest.h>
#include <unistd.h>

#include <set>
#include <thread>

#include "common/base/clock.h"
#include "common/base/file_lock.h"
#include "common/base/file_map.h"
#include "common/base/host_port.h"
#include "common/base/queue.h"
#include "common/base/random_id.h"
#include "common/base/status.h"
#include "common/base/strong_id.h"

namespace sluice {
namespace {

static_assert(!std::is_convertible_v<LogicalLen, KeptLen>);
static_assert(!std::is_constructible_v<KeptLen, LogicalLen>);

TEST(BoundedQueue, RefusesWhenFullAndWhenClosed) {
  BoundedQueue<int> queue(2);
  EXPECT_TRUE(queue.TryPush(1));
  EXPECT_TRUE(queue.TryPush(2));
  EXPECT_FALSE(queue.TryPush(3));
  EXPECT_EQ(queue.PopAll(absl::ZeroDuration()), (std::vector<int>{1, 2}));
  queue.Close();
  EXPECT_FALSE(queue.TryPush(4));
}

TEST(BoundedQueue, WakesAWaiter) {
  BoundedQueue<int> queue(1);
  std::thread pusher([&] { queue.TryPush(7); });
  std::vector<int> got;
  while (got.empty()) got = queue.PopAll(absl::Seconds(5));
  pusher.join();
  EXPECT_EQ(got, std::vector<int>{7});
}

TEST(RandomId, IdsAreDistinctAndWellFormed) {
  std::set<std::string> seen;
  for (int i = 0; i < 1000; ++i) seen.insert(RandomId128());
  EXPECT_EQ(seen.size(), 1000u);
  std::string uuid = UuidV7();
  EXPECT_EQ(uuid.size(), 36u);
  EXPECT_EQ(uuid[14], '7');
}

TEST(FileMap, NamesTheMissingFile) {
  auto map = FileMap::Open("/no/such/file");
  ASSERT_FALSE(map.ok());
  EXPECT_NE(map.status().ToString().find("/no/such/file"), std::string::npos);
}

TEST(FileLock, IsHeldByOneAtATime) {
  const std::string path = testing::TempDir() + "file_lock_" + RandomId128();
  auto first = FileLock::Take(path);
  ASSERT_TRUE(first.ok()) << first.status();
  const absl::Status second = FileLock::Take(path).status();
  EXPECT_EQ(second.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(second.message(), path + " is held by process " + std::to_string(getpid()));
  {
    const FileLock moved = *std::move(first);
    EXPECT_FALSE(FileLock::Take(path).ok());
  }
  EXPECT_TRUE(FileLock::Take(path).ok());
  unlink(path.c_str());
}

TEST(FileLock, NamesTheFileThatCannotBeMade) {
  const absl::Status status = FileLock::Take("/no/such/directory/lock").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_NE(status.message().find("/no/such/directory/lock"), std::string::npos);
}

TEST(SteadyClock, NeverGoesBack) {
  SteadyClock clock;
  absl::Time a = clock.Now();
  EXPECT_LE(a, clock.Now());
}

TEST(HostPort, TakesAPortOf16BitsAndNothingBehindIt) {
  for (const char* good : {"127.0.0.1:0", "0.0.0.0:65535", "[::1]:7100", "localhost:80"})
    EXPECT_TRUE(CheckHostPort("--listen", good).ok()) << good;
  for (const char* bad :
       {"127.0.0.1:99999", "127.0.0.1:", ":7100", "7100", "", "host:-1", "a:1,b:2", "host:443s", "a b:1"}) {
    const absl::Status status = CheckHostPort("--listen", bad);
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << bad;
    EXPECT_NE(status.message().find("--listen"), std::string::npos) << status;
  }
}

}  // namespace
}  // namespace sluice
