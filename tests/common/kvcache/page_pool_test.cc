#include "common/kvcache/page_pool.h"

#include <random>
#include <set>
#include <thread>

#include "gtest/gtest.h"

namespace sluice {
namespace {

Buffer HostMemory(size_t bytes) {
  return Buffer(new char[bytes], bytes, [](void* p) { delete[] static_cast<char*>(p); });
}

TEST(PagePoolTest, HoldsAsManyPagesAsTheBuffer) {
  PagePool pool("kv pages", HostMemory(1000), 64);
  EXPECT_EQ(pool.total_pages(), 15);
  EXPECT_EQ(pool.free_pages(), 15);
}

TEST(PagePoolTest, AnEmptyBufferHoldsNone) {
  PagePool pool("kv bounds", Buffer(), 64);
  EXPECT_EQ(pool.total_pages(), 0);
  EXPECT_TRUE(pool.Take(0).ok());
  EXPECT_EQ(pool.Take(1).status().code(), absl::StatusCode::kResourceExhausted);
}

TEST(PagePoolTest, TakeIsAllOrNothing) {
  PagePool pool("kv pages", HostMemory(10 * 64), 64);
  auto six = pool.Take(6);
  ASSERT_TRUE(six.ok());
  auto five = pool.Take(5);
  EXPECT_EQ(five.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(five.status().message(), "kv pages: need 5, free 4 of 10");
  EXPECT_EQ(pool.free_pages(), 4);
  pool.Give(*six);
  EXPECT_EQ(pool.free_pages(), 10);
}

TEST(PagePoolTest, NoPageHasTwoOwnersInRandomSequences) {
  PagePool pool("kv pages", HostMemory(97 * 64), 64);
  std::mt19937 random(1);
  std::vector<std::vector<PageId>> owned;
  std::set<PageId> taken;
  for (int step = 0; step < 5000; ++step) {
    if (random() % 2 == 0 || owned.empty()) {
      const int n = static_cast<int>(random() % 12);
      auto pages = pool.Take(n);
      ASSERT_EQ(pages.ok(), n <= 97 - static_cast<int>(taken.size()));
      if (!pages.ok()) continue;
      for (PageId page : *pages) {
        ASSERT_TRUE(taken.insert(page).second);
        ASSERT_LT(page.value(), 97);
      }
      owned.push_back(*std::move(pages));
    } else {
      std::swap(owned[random() % owned.size()], owned.back());
      for (PageId page : owned.back()) taken.erase(page);
      pool.Give(owned.back());
      owned.pop_back();
    }
    ASSERT_EQ(pool.free_pages(), 97 - static_cast<int>(taken.size()));
  }
}

TEST(PagePoolTest, ThreadsShareIt) {
  constexpr int kPages = 64;
  PagePool pool("kv pages", HostMemory(kPages * 64), 64);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&pool, t] {
      std::mt19937 random(t);
      for (int i = 0; i < 3000; ++i) {
        auto pages = pool.Take(static_cast<int>(random() % 24));
        if (!pages.ok()) continue;
        // A page with two owners would lose one of the marks (and is a data race).
        for (PageId page : *pages) {
          static_cast<char*>(pool.data())[page.value() * 64] = static_cast<char>(t);
        }
        for (PageId page : *pages) {
          ASSERT_EQ(static_cast<char*>(pool.data())[page.value() * 64], static_cast<char>(t));
        }
        pool.Give(*pages);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(pool.free_pages(), kPages);
}

}  // namespace
}  // namespace sluice
