#include "prefill_server/prefix_tree.h"

#include <gtest/gtest.h>

#include <numeric>

#include "kernels/cpu/cpu_backend.h"

namespace sluice {
namespace {

constexpr int kBlock = PrefixTree::kBlockTokens;

class PrefixTreeTest : public testing::Test {
 protected:
  PrefixTreeTest() : backend_(std::move(*NewCpuBackend({}))), ops_(backend_->NewOps()) {}

  static std::vector<int32_t> Ids(int n, int salt = 0) {
    std::vector<int32_t> ids(n);
    for (int i = 0; i < n; ++i) ids[i] = i * 7 + salt;
    return ids;
  }
  // The value of channel c of K of (layer, head, position); V is its negative.
  static float Value(int layer, int head, int position, int c) {
    return static_cast<float>(layer * 1000000 + head * 100000 + position * 8 + c);
  }

  // A pass over everything behind `path`.
  void Extend(PrefixTree* tree, const std::vector<int32_t>& ids, const PrefixTree::Path& path,
              const std::string& owner = "a", const std::string& turn_id = "") {
    PrefixTree::Extension extension = tree->Begin(owner, ids, path, now_);
    const int first = path.tokens();
    const int n = static_cast<int>(ids.size()) - first;
    for (int layer = 0; layer < shape_.n_layers; ++layer) {
      std::vector<float> k, v;
      for (int h = 0; h < shape_.n_kv_heads; ++h) {
        for (int i = 0; i < n; ++i) {
          for (int c = 0; c < shape_.head_dim; ++c) k.push_back(Value(layer, h, first + i, c));
        }
      }
      for (float x : k) v.push_back(-x);
      auto view = [&](std::vector<float>& data) {
        return TensorView::Contiguous(data.data(), DType::kF32, {shape_.n_kv_heads, n, shape_.head_dim});
      };
      extension.Write(/*rank=*/0, LayerId(layer), view(k), view(v), *ops_);
    }
    tree->Publish(std::move(extension), turn_id, now_);
  }
  void Remember(PrefixTree* tree, const std::vector<int32_t>& ids, const std::string& owner = "a",
                const std::string& turn_id = "") {
    Extend(tree, ids, tree->Match(owner, ids, static_cast<int>(ids.size()), now_), owner, turn_id);
  }
  int Known(PrefixTree* tree, const std::vector<int32_t>& ids, const std::string& owner = "a") {
    return tree->Match(owner, ids, static_cast<int>(ids.size()), now_).tokens();
  }

  const std::unique_ptr<Backend> backend_;
  const std::unique_ptr<Ops> ops_;
  const KvShape shape_{.n_layers = 2, .n_q_heads = 4, .n_kv_heads = 2, .head_dim = 16, .dtype = DType::kF32};
  const size_t block_bytes_ = shape_.token_bytes() * kBlock;
  absl::Time now_ = absl::UnixEpoch() + absl::Hours(1);
};

TEST_F(PrefixTreeTest, WholeBlocksAreFoundAgainAndReadBackExactly) {
  PrefixTree tree({backend_.get()}, shape_, block_bytes_ * 16);
  const std::vector<int32_t> ids = Ids(3 * kBlock + 10);
  Remember(&tree, Ids(kBlock));  // the second pass stands on the first
  Remember(&tree, ids);
  PrefixTree::Path path = tree.Match("a", ids, static_cast<int>(ids.size()), now_);
  ASSERT_EQ(path.tokens(), 3 * kBlock);
  EXPECT_EQ(tree.bytes(), 3 * block_bytes_);
  const int n = path.tokens();
  for (int layer = 0; layer < shape_.n_layers; ++layer) {
    std::vector<float> k(shape_.n_kv_heads * n * shape_.head_dim), v = k;
    std::vector<int32_t> positions(n);
    TensorView shared = TensorView::Contiguous(positions.data(), DType::kI32, {shape_.n_kv_heads, n});
    shared.stride[0] = 0;
    auto view = [&](std::vector<float>& data) {
      return TensorView::Contiguous(data.data(), DType::kF32, {shape_.n_kv_heads, n, shape_.head_dim});
    };
    ASSERT_TRUE(path.Read(/*rank=*/0, LayerId(layer), view(k), view(v), shared, *ops_).ok());
    ASSERT_TRUE(ops_->Sync().ok());
    size_t at = 0;
    for (int h = 0; h < shape_.n_kv_heads; ++h) {
      for (int i = 0; i < n; ++i) {
        for (int c = 0; c < shape_.head_dim; ++c, ++at) {
          ASSERT_EQ(k[at], Value(layer, h, i, c));
          ASSERT_EQ(v[at], -k[at]);
        }
      }
    }
    for (int i = 0; i < n; ++i) ASSERT_EQ(positions[i], i);
  }
}

TEST_F(PrefixTreeTest, AMatchIsCutAtTheAskedLength) {
  PrefixTree tree({backend_.get()}, shape_, block_bytes_ * 16);
  const std::vector<int32_t> ids = Ids(4 * kBlock);
  Remember(&tree, ids);
  EXPECT_EQ(tree.Match("a", ids, 4 * kBlock - 1, now_).tokens(), 3 * kBlock);
  EXPECT_EQ(tree.Match("a", ids, kBlock - 1, now_).tokens(), 0);
}

TEST_F(PrefixTreeTest, ForksShareTheirPathAndOwnersShareNothing) {
  PrefixTree tree({backend_.get()}, shape_, block_bytes_ * 16);
  std::vector<int32_t> left = Ids(3 * kBlock), right = left;
  right[2 * kBlock] = 999;
  Remember(&tree, left);
  Remember(&tree, right);
  EXPECT_EQ(tree.bytes(), 4 * block_bytes_);
  EXPECT_EQ(Known(&tree, left), 3 * kBlock);
  EXPECT_EQ(Known(&tree, right), 3 * kBlock);
  EXPECT_EQ(Known(&tree, left, "b"), 0);
}

TEST_F(PrefixTreeTest, ABlockThatTwoPassesMadeIsKeptOnce) {
  PrefixTree tree({backend_.get()}, shape_, block_bytes_ * 16);
  const std::vector<int32_t> ids = Ids(2 * kBlock);
  PrefixTree::Path one = tree.Match("a", ids, 0, now_), two = tree.Match("a", ids, 0, now_);
  Extend(&tree, ids, one);
  Extend(&tree, ids, two);
  EXPECT_EQ(tree.bytes(), 2 * block_bytes_);
}

TEST_F(PrefixTreeTest, UnderPressureIdleLeavesGoFirstAndPinnedOnesStay) {
  PrefixTree tree({backend_.get()}, shape_, block_bytes_ * 4);
  const std::vector<int32_t> old = Ids(2 * kBlock, 1), pinned = Ids(2 * kBlock, 2),
                             fresh = Ids(2 * kBlock, 3);
  Remember(&tree, old);
  now_ += absl::Minutes(1);
  Remember(&tree, pinned);
  {
    PrefixTree::Path held = tree.Match("a", pinned, 2 * kBlock, now_);
    now_ += absl::Hours(1);
    Remember(&tree, fresh);
    EXPECT_EQ(Known(&tree, old), 0);
    EXPECT_EQ(held.tokens(), 2 * kBlock);
    EXPECT_EQ(Known(&tree, pinned), 2 * kBlock);
    EXPECT_LE(tree.bytes(), tree.limit_bytes());
    EXPECT_EQ(tree.evictions(), 2);
    PrefixTree::Path twice = tree.Match("a", pinned, kBlock, now_);
    EXPECT_EQ(tree.blocks().free, 0);
    EXPECT_EQ(tree.blocks().pinned, 2);
    EXPECT_EQ(tree.blocks().cached, 2);
  }
  EXPECT_EQ(tree.blocks().pinned, 0);
  EXPECT_EQ(tree.blocks().cached, 4);
  EXPECT_TRUE(tree.MakeRoom(block_bytes_ * 4, now_ + absl::Hours(2)));
  EXPECT_EQ(tree.bytes(), 0u);
  EXPECT_FALSE(tree.MakeRoom(block_bytes_ * 5, now_));
}

TEST_F(PrefixTreeTest, WhatAPassNeverPublishedIsGivenBack) {
  PrefixTree tree({backend_.get()}, shape_, block_bytes_ * 4);
  const std::vector<int32_t> ids = Ids(2 * kBlock);
  {
    PrefixTree::Path path = tree.Match("a", ids, 0, now_);
    PrefixTree::Extension extension = tree.Begin("a", ids, path, now_);
    EXPECT_EQ(tree.bytes(), 2 * block_bytes_);
  }
  EXPECT_EQ(tree.bytes(), 0u);
  EXPECT_EQ(Known(&tree, ids), 0);
}

TEST_F(PrefixTreeTest, AKeptSetIsFoundByItsTurnAndLostUnderPressure) {
  PrefixTree tree({backend_.get()}, shape_, block_bytes_ * 2);
  auto kept = std::make_shared<PrefixTree::KeptSet>();
  kept->head_dim = shape_.head_dim;
  kept->ids = Ids(100);
  for (int layer = 0; layer < shape_.n_layers; ++layer) {
    KeptLayer rows;
    rows.kept = {5, 5};
    rows.k = *backend_->Allocate(10 * shape_.row_bytes());
    rows.v = *backend_->Allocate(10 * shape_.row_bytes());
    rows.positions = *backend_->Allocate(10 * 4);
    kept->layers.push_back(std::move(rows));
  }
  tree.PutKept("a", "turn1", kept, now_);
  EXPECT_EQ(tree.FindKept("a", "turn1", now_), kept);
  EXPECT_EQ(tree.FindKept("b", "turn1", now_), nullptr);
  EXPECT_EQ(tree.FindKept("a", "turn2", now_), nullptr);
  EXPECT_EQ(kept->rows(LayerId(1)), 5);
  EXPECT_TRUE(tree.MakeRoom(block_bytes_ * 2, now_));
  EXPECT_EQ(tree.FindKept("a", "turn1", now_), nullptr);
  EXPECT_EQ(tree.bytes(), 0u);
}

TEST_F(PrefixTreeTest, AForgottenTurnTakesItsBlocksDownToWhatStays) {
  PrefixTree tree({backend_.get()}, shape_, block_bytes_ * 16);
  const std::vector<int32_t> first = Ids(2 * kBlock + 5), second = Ids(4 * kBlock + 5),
                             third = Ids(6 * kBlock);
  Remember(&tree, first, "a", "t1");
  Remember(&tree, second, "a", "t2");
  Remember(&tree, third, "a", "t3");
  ASSERT_EQ(tree.bytes(), 6 * block_bytes_);
  EXPECT_EQ(tree.Forget("b", {"t3"}, {{third, 0}}), 0u);  // another owner's tree
  // The turn before it stands on four blocks, whatever is to stay.
  EXPECT_EQ(tree.Forget("a", {"t3"}, {{third, 0}}), 2 * block_bytes_);
  EXPECT_EQ(Known(&tree, third), 4 * kBlock);
  // A block that has a token that is to stay and one that is not goes.
  EXPECT_EQ(tree.Forget("a", {"t2"}, {{second, 3 * kBlock + 1}}), block_bytes_);
  EXPECT_EQ(Known(&tree, third), 3 * kBlock);
  EXPECT_EQ(tree.Forget("a", {"t1"}, {{first, 0}}), 0u);  // a block follows
  EXPECT_EQ(tree.Forget("a", {}, {{second, 0}}), 3 * block_bytes_);
  EXPECT_EQ(tree.bytes(), 0u);
  EXPECT_EQ(tree.evictions(), 0);
  EXPECT_EQ(tree.forgotten(), 6);
}

TEST_F(PrefixTreeTest, AnOwnersSaltsShareNothingAndAreForgottenTogether) {
  PrefixTree tree({backend_.get()}, shape_, block_bytes_ * 16);
  const std::vector<int32_t> ids = Ids(2 * kBlock);
  const std::string plain = PartitionOf("a", ""), salted = PartitionOf("a", "s"),
                    other = PartitionOf("ab", "s");
  for (const std::string& partition : {plain, salted, other}) {
    EXPECT_EQ(Known(&tree, ids, partition), 0);
    Remember(&tree, ids, partition, "t");
    EXPECT_EQ(Known(&tree, ids, partition), 2 * kBlock);
  }
  EXPECT_EQ(Known(&tree, ids, PartitionOf("a", "S")), 0);
  EXPECT_EQ(Known(&tree, ids, PartitionOf("", "s")), 0);
  EXPECT_EQ(Known(&tree, ids, "as"), 0);
  EXPECT_EQ(tree.bytes(), 6 * block_bytes_);
  EXPECT_EQ(tree.Forget("a", {"t"}, {{ids, 0}}), 4 * block_bytes_);
  EXPECT_EQ(Known(&tree, ids, plain) + Known(&tree, ids, salted), 0);
  EXPECT_EQ(Known(&tree, ids, other), 2 * kBlock);
}

TEST_F(PrefixTreeTest, ForgettingASessionLeavesWhatAnotherOneStandsOn) {
  PrefixTree tree({backend_.get()}, shape_, block_bytes_ * 16);
  const std::vector<int32_t> document = Ids(3 * kBlock);
  std::vector<int32_t> left = document, right = document, longer = document;
  left.push_back(1);  // short questions: no whole block of their own
  right.push_back(2);
  longer.resize(4 * kBlock, 3);
  Remember(&tree, left, "a", "t1");
  Remember(&tree, right, "a", "t2");
  Remember(&tree, longer, "a", "t3");
  EXPECT_EQ(tree.Forget("a", {"t1"}, {{left, 0}}), 0u);
  EXPECT_EQ(tree.Forget("a", {"t3"}, {{longer, 0}}), block_bytes_);
  EXPECT_EQ(Known(&tree, right), 3 * kBlock);
  EXPECT_EQ(tree.Forget("a", {"t2"}, {{right, 0}}), 3 * block_bytes_);
}

TEST_F(PrefixTreeTest, ForgettingTakesKeptSetsAndSparesWhatIsPinned) {
  PrefixTree tree({backend_.get()}, shape_, block_bytes_ * 16);
  const std::vector<int32_t> ids = Ids(2 * kBlock);
  Remember(&tree, ids, "a", "t1");
  auto kept = std::make_shared<PrefixTree::KeptSet>();
  kept->ids = ids;
  kept->layers.resize(1);
  kept->layers[0].k = *backend_->Allocate(256);
  tree.PutKept("a", "t2", kept, now_);
  PrefixTree::Path pinned = tree.Match("a", ids, kBlock, now_);
  EXPECT_EQ(tree.Forget("a", {"t2", "unknown"}, {}), 256u);
  EXPECT_EQ(tree.FindKept("a", "t2", now_), nullptr);
  EXPECT_EQ(tree.Forget("a", {"t1"}, {{ids, 0}}), block_bytes_);
  EXPECT_EQ(Known(&tree, ids), kBlock);
  tree.PutKept("a", "t2", kept, now_);
  EXPECT_EQ(tree.ForgetAll(), 256u);
  pinned = PrefixTree::Path();
  EXPECT_EQ(tree.ForgetAll(), block_bytes_);
  EXPECT_EQ(tree.bytes(), 0u);
  EXPECT_EQ(tree.forgotten(), 4);
}

}  // namespace
}  // namespace sluice
