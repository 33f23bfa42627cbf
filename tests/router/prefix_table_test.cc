#include "router/prefix_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

namespace sluice {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::Pair;

std::vector<int32_t> Ids(int n, int32_t first = 0) {
  std::vector<int32_t> ids(n);
  std::iota(ids.begin(), ids.end(), first);
  return ids;
}

TEST(PrefixTable, HashesAreOfWholeBlocksAndAllBeforeThem) {
  std::vector<int32_t> ids = Ids(3 * kPrefixBlock + 7);
  const std::vector<uint64_t> hashes = PrefixHashes("", ids);
  ASSERT_EQ(hashes.size(), 3u);
  EXPECT_EQ(PrefixHashes("", Ids(2 * kPrefixBlock)), std::vector<uint64_t>(hashes.begin(), hashes.end() - 1));
  ids[0] = 99;
  const std::vector<uint64_t> other = PrefixHashes("", ids);
  for (int i = 0; i < 3; ++i) EXPECT_NE(other[i], hashes[i]);
  EXPECT_THAT(PrefixHashes("", Ids(kPrefixBlock - 1)), IsEmpty());
}

TEST(PrefixTable, PartitionsShareNothing) {
  const std::vector<int32_t> ids = Ids(kPrefixBlock);
  PrefixTable table;
  table.Remember(PrefixHashes("ann", ids), "p1");
  EXPECT_THAT(table.Holders(PrefixHashes("ann", ids)), ElementsAre(Pair("p1", kPrefixBlock)));
  EXPECT_THAT(table.Holders(PrefixHashes("bob", ids)), IsEmpty());
}

TEST(PrefixTable, EachWorkerHasWhatItComputedFromTheBeginningOn) {
  PrefixTable table;
  table.Remember(std::vector<uint64_t>{1, 2, 3}, "p1");
  table.Remember(std::vector<uint64_t>{1, 2}, "p2");
  table.Remember(std::vector<uint64_t>{9, 8}, "p3");
  EXPECT_THAT(table.Holders(std::vector<uint64_t>{1, 2, 3, 4}),
              ElementsAre(Pair("p1", 3 * kPrefixBlock), Pair("p2", 2 * kPrefixBlock)));
  EXPECT_THAT(table.Holders(std::vector<uint64_t>{7, 2, 3}), IsEmpty());
}

TEST(PrefixTable, AForgottenWorkerHoldsNothingEvenWhenItComesBack) {
  PrefixTable table;
  table.Remember(std::vector<uint64_t>{1, 2}, "p1");
  table.Remember(std::vector<uint64_t>{1}, "p2");
  table.Forget("p1");
  EXPECT_THAT(table.Holders(std::vector<uint64_t>{1, 2}), ElementsAre(Pair("p2", kPrefixBlock)));
  table.Remember(std::vector<uint64_t>{5}, "p1");
  EXPECT_THAT(table.Holders(std::vector<uint64_t>{1, 2}), ElementsAre(Pair("p2", kPrefixBlock)));
}

TEST(PrefixTable, IsBoundedAndForgetsTheOldestAndTheEndsFirst) {
  PrefixTable table(4);
  table.Remember(std::vector<uint64_t>{1, 2, 3}, "p1");
  table.Remember(std::vector<uint64_t>{11, 12}, "p2");
  EXPECT_EQ(table.blocks(), 4u);
  EXPECT_THAT(table.Holders(std::vector<uint64_t>{1, 2, 3}), ElementsAre(Pair("p1", 2 * kPrefixBlock)));
  EXPECT_THAT(table.Holders(std::vector<uint64_t>{11, 12}), ElementsAre(Pair("p2", 2 * kPrefixBlock)));
  for (uint64_t i = 100; i < 200; ++i) table.Remember(std::vector<uint64_t>{i}, "p" + std::to_string(i));
  EXPECT_EQ(table.blocks(), 4u);
}

}  // namespace
}  // namespace sluice
