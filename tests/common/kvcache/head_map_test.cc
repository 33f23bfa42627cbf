// Where a head lies on two servers of any two sizes.
#include "common/kvcache/head_map.h"

#include <gtest/gtest.h>

#include <vector>

namespace sluice {
namespace {

struct Place {
  int rank, local;
  friend bool operator==(const Place&, const Place&) = default;
};

TEST(HeadMap, EightHeadsLieWhereTheTableSays) {
  const std::vector<std::pair<int, std::vector<Place>>> table = {
      {1, {{0, 0}, {0, 1}, {0, 2}, {0, 3}, {0, 4}, {0, 5}, {0, 6}, {0, 7}}},
      {2, {{0, 0}, {0, 1}, {0, 2}, {0, 3}, {1, 0}, {1, 1}, {1, 2}, {1, 3}}},
      {4, {{0, 0}, {0, 1}, {1, 0}, {1, 1}, {2, 0}, {2, 1}, {3, 0}, {3, 1}}},
      {8, {{0, 0}, {1, 0}, {2, 0}, {3, 0}, {4, 0}, {5, 0}, {6, 0}, {7, 0}}},
  };
  for (const auto& [ranks, places] : table) {
    const auto map = HeadMap::Create(8, ranks);
    ASSERT_TRUE(map.ok()) << map.status();
    EXPECT_EQ(map->ranks(), ranks);
    for (int head = 0; head < 8; ++head)
      EXPECT_EQ((Place{map->rank_of(head), map->local(head)}), places[head])
          << ranks << " ranks, head " << head;
  }
}

// From a head's place on one server over its number in the model to its place on the other: every local head
// of the receiver is met once, whatever the sizes.
TEST(HeadMap, EveryPairOfSizesMeetsEveryHeadOnce) {
  for (int heads : {1, 2, 3, 4, 6, 8, 32}) {
    for (int from = 1; from <= heads; ++from) {
      for (int to = 1; to <= heads; ++to) {
        const auto sender = HeadMap::Create(heads, from), receiver = HeadMap::Create(heads, to);
        EXPECT_EQ(sender.ok(), heads % from == 0);
        if (!sender.ok() || !receiver.ok()) continue;
        std::vector<int> met(heads);
        for (int rank = 0; rank < from; ++rank) {
          for (int local = 0; local < sender->per_rank(); ++local) {
            const int head = sender->global(rank, local);
            EXPECT_EQ(sender->rank_of(head), rank);
            EXPECT_EQ(sender->local(head), local);
            ++met[receiver->rank_of(head) * receiver->per_rank() + receiver->local(head)];
          }
        }
        EXPECT_EQ(met, std::vector<int>(heads, 1)) << from << " to " << to;
      }
    }
  }
}

TEST(HeadMap, RanksThatDoNotDivideTheHeadsAreRefused) {
  for (int ranks : {0, 3, 5, 16})
    EXPECT_EQ(HeadMap::Create(8, ranks).status().code(), absl::StatusCode::kInvalidArgument) << ranks;
}

}  // namespace
}  // namespace sluice
