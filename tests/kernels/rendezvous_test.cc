// What ranks that launch together promise each other: nobody begins before all are there, nobody goes on
// before all have launched, and nobody waits for one that does not come.
#include "kernels/rendezvous.h"

#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <random>
#include <thread>
#include <vector>

#include "absl/time/clock.h"
#include "common/base/mutex.h"

namespace sluice {
namespace {

// body(rank) on a thread for each rank.
void OnAll(int ranks, const std::function<void(int rank)>& body) {
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) threads.emplace_back(body, rank);
  for (std::thread& thread : threads) thread.join();
}

TEST(Rendezvous, AllSayYesOrNobodyIsTold) {
  constexpr int kRanks = 3;
  Rendezvous meeting(kRanks, absl::Seconds(30));
  OnAll(kRanks, [&](int rank) {
    for (int i = 0; i < 1000; ++i) {
      const absl::StatusOr<bool> agreed = meeting.Agree(i % 4 != rank);
      ASSERT_TRUE(agreed.ok()) << agreed.status();
      EXPECT_EQ(*agreed, i % 4 == 3) << rank << ": " << i;
    }
  });
}

TEST(Rendezvous, LaunchesBeginTogetherAndEndTogether) {
  constexpr int kRanks = 4;
  Rendezvous meeting(kRanks, absl::Seconds(30));
  std::atomic<int> came{0}, launched{0};
  OnAll(kRanks, [&](int rank) {
    for (int i = 1; i <= 500; ++i) {
      ++came;
      const absl::Status status = meeting.Launch([&] {
        EXPECT_GE(came.load(), i * kRanks);
        ++launched;
        return absl::OkStatus();
      });
      ASSERT_TRUE(status.ok()) << status;
      EXPECT_GE(launched.load(), i * kRanks);
    }
  });
}

// A driver that lets one thread in at a time, also while it waits for a GPU, and a GPU that is busy until
// what it was given has been given to all.
class Driver {
 public:
  explicit Driver(int gpus) : launched_(gpus) {}

  void LaunchSum(int gpu) {
    MutexLock lock(&mu_);
    ++launched_[gpu];
  }
  // As the first launch of a kernel. False: it waited too long.
  bool Load(int gpu) {
    MutexLock lock(&mu_);
    const int given = launched_[gpu];
    const absl::Time end = absl::Now() + absl::Seconds(10);
    for (const std::atomic<int>& other : launched_)
      while (other < given)
        if (absl::Now() > end) return false;
    return true;
  }

 private:
  Mutex mu_;
  std::vector<std::atomic<int>> launched_;  // sums, by GPU
};

TEST(Rendezvous, ARankThatWaitsInTheDriverKeepsNobodyFromASum) {
  constexpr int kRanks = 3;
  Rendezvous meeting(kRanks, absl::Seconds(30));
  Driver driver(kRanks);
  OnAll(kRanks, [&](int rank) {
    std::mt19937 random(rank);
    for (int i = 0; i < 300; ++i) {
      if (random() % 2 == 0) {
        ASSERT_TRUE(driver.Load(rank)) << rank << ": " << i;
      }
      ASSERT_TRUE(meeting
                      .Launch([&] {
                        driver.LaunchSum(rank);
                        return absl::OkStatus();
                      })
                      .ok());
    }
  });
}

TEST(Rendezvous, BreakEndsWhatWaitsAndWhatComes) {
  Rendezvous meeting(2, absl::Seconds(30));
  for (int round = 0; round < 20; ++round) {
    std::thread waiting([&] { EXPECT_TRUE(absl::IsAborted(meeting.Agree(false).status())); });
    if (round % 2 == 0) absl::SleepFor(absl::Milliseconds(2));  // it is blocked, or spins, or has not come
    meeting.Break();
    waiting.join();
    EXPECT_TRUE(absl::IsAborted(meeting.Launch([] { return absl::OkStatus(); })));
    meeting.Mend();
    // The call that was broken off counts no more, and neither does what it said.
    OnAll(2, [&](int) { EXPECT_EQ(meeting.Agree(true).value_or(false), true); });
  }
}

TEST(Rendezvous, AFailedLaunchEndsTheOthersWait) {
  constexpr int kRanks = 3;
  Rendezvous meeting(kRanks, absl::Seconds(30));
  std::vector<absl::Status> ended(kRanks);
  OnAll(kRanks, [&](int rank) {
    ended[rank] =
        meeting.Launch([&] { return rank == 1 ? absl::DataLossError("no launch") : absl::OkStatus(); });
  });
  EXPECT_EQ(ended[1], absl::DataLossError("no launch"));
  EXPECT_TRUE(absl::IsAborted(ended[0])) << ended[0];
  EXPECT_TRUE(absl::IsAborted(ended[2])) << ended[2];
}

TEST(Rendezvous, WhoDoesNotComeIsGivenUp) {
  constexpr int kRanks = 3;
  Rendezvous meeting(kRanks, absl::Milliseconds(20));
  std::vector<absl::Status> ended(kRanks);
  OnAll(kRanks, [&](int rank) {
    if (rank > 0) ended[rank] = meeting.Agree(true).status();
  });
  // One gives up first; the other is told, or gives up by itself.
  EXPECT_TRUE(absl::IsDeadlineExceeded(ended[1]) || absl::IsDeadlineExceeded(ended[2]))
      << ended[1] << ended[2];
  EXPECT_FALSE(ended[1].ok());
  EXPECT_FALSE(ended[2].ok());
  EXPECT_TRUE(absl::IsAborted(meeting.Agree(true).status()));
}

}  // namespace
}  // namespace sluice
