// Role: what sessions remember on prefill: one tree of token blocks with their full K,V per layer. A session
// is a path in it, a fork shares the path, two sessions over one document share its blocks. A history that
// was evicted (RocketKV without MT) is one private kept set, a leaf under the root of its partition named by
// its turn. Why blocks: 64 tokens are the unit of sharing and of eviction; a tail shorter than that is
// computed again. Under the memory limit the least valuable leaf goes first: the cheaper to recompute for its
// bytes and the longer idle, the sooner. A turn that the router forgets takes along what no other turn stands
// on: each node knows the turns whose prompts end in it. Token ids live in the router: whatever is lost here
// can be rebuilt. Threads: one loop (the prefill loop). Counters may be read by any thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/engine/ranked_prefill.h"
#include "common/kvcache/kept_layer.h"
#include "common/kvcache/kv_shape.h"
#include "kernels/backend.h"

namespace sluice {

// What is shared, is shared within: an owner's requests of one cache salt, its own empty one included.
// NUL parts the two: no owner's name holds one.
std::string PartitionOf(absl::string_view owner, absl::string_view cache_salt);

class PrefixTree {
  struct Node;
  using Block = std::vector<Buffer>;  // by rank: [layer][K|V][its KV heads][kBlockTokens][head_dim]

 public:
  static constexpr int kBlockTokens = 64;

  // ranks: where each rank of the model keeps its KV heads of a block. shape: of the whole model.
  PrefixTree(std::vector<Backend*> ranks, const KvShape& shape, size_t limit_bytes);
  ~PrefixTree();

  // Pins nodes against eviction as long as it lives; must not outlive the tree.
  class Path final : public RankedHistory {
   public:
    Path() = default;
    Path(Path&& other) noexcept;
    Path& operator=(Path&& other) noexcept;
    ~Path() override;
    int tokens() const { return static_cast<int>(nodes_.size()) * kBlockTokens; }
    int rows(LayerId layer) const override;
    absl::Status Read(int rank, LayerId layer, TensorView k, TensorView v, TensorView positions,
                      Ops& ops) const override;

   private:
    friend class PrefixTree;
    PrefixTree* tree_ = nullptr;
    std::vector<Node*> nodes_;
  };

  // The longest stored prefix of `ids` in a partition (PartitionOf), at most `max_tokens`, in whole blocks.
  Path Match(absl::string_view partition, absl::Span<const int32_t> ids, int max_tokens, absl::Time now);

  // Takes the new tokens' K,V of a pass, layer by layer, and publishes whole blocks at the end. What does not
  // fit into the limit is not remembered.
  class Extension {
   public:
    Extension() = default;
    Extension(Extension&& other) noexcept;
    Extension& operator=(Extension&& other) noexcept;
    ~Extension();  // what was not published is given back
    // k, v [KV heads of the rank, n, head_dim]: rows of ids[path.tokens()...]. Ranks may write at once.
    void Write(int rank, LayerId layer, TensorView k, TensorView v, Ops& ops);

   private:
    friend class PrefixTree;
    std::string partition_;
    std::vector<int32_t> ids_;
    int first_token_ = 0;
    std::vector<Block> blocks_;
    PrefixTree* tree_ = nullptr;
  };
  Extension Begin(absl::string_view partition, absl::Span<const int32_t> ids, const Path& path,
                  absl::Time now);
  // turn_id: whose prompt it is; empty: nobody's, it goes under pressure only.
  void Publish(Extension extension, absl::string_view turn_id, absl::Time now);

  // history=evict: the kept set of a turn, immutable, shared by forks of the turn.
  struct KeptSet final : public RankedHistory {
    std::vector<KeptLayer> layers;  // on rank 0's device
    std::vector<int32_t> ids;       // the tokens it stands for
    int head_dim = 0;
    int rows(LayerId layer) const override;
    absl::Status Read(int rank, LayerId layer, TensorView k, TensorView v, TensorView positions,
                      Ops& ops) const override;
    size_t bytes() const;
  };
  void PutKept(absl::string_view partition, absl::string_view turn_id, std::shared_ptr<const KeptSet> kept,
               absl::Time now);
  // Null when unknown or evicted.
  std::shared_ptr<const KeptSet> FindKept(absl::string_view partition, absl::string_view turn_id,
                                          absl::Time now);

  // Turns that are no more, in whichever of the owner's partitions: their kept sets go, and of their prompts
  // the blocks behind `keep_tokens` that no other turn stands on. What a pass has pinned stays. Returns the
  // bytes freed.
  struct Forgotten {
    absl::Span<const int32_t> prompt;
    int keep_tokens = 0;
  };
  size_t Forget(absl::string_view owner, absl::Span<const std::string> turn_ids,
                absl::Span<const Forgotten> prompts);
  // Everything that is not pinned.
  size_t ForgetAll();

  size_t bytes() const { return bytes_; }
  size_t limit_bytes() const { return limit_bytes_; }
  int64_t evictions() const { return evictions_; }  // under pressure
  int64_t forgotten() const { return forgotten_; }  // nodes that went with their turns
  // In blocks; what a kept set holds counts as so many.
  struct Blocks {
    int64_t free = 0, pinned = 0, cached = 0;
  };
  Blocks blocks() const;
  // Frees unpinned nodes, least valuable first, until `bytes` more fit under the limit. False: they never
  // will.
  bool MakeRoom(size_t bytes, absl::Time now);

 private:
  size_t block_bytes() const { return shape_.token_bytes() * kBlockTokens; }
  absl::StatusOr<Block> NewBlock() const;
  TensorView BlockView(const Block& block, int rank, LayerId layer, int k_or_v) const;
  Node* Root(absl::string_view partition);  // null: nothing is stored there
  Node* MakeRoot(absl::string_view partition);
  void ForgetIn(Node* root, absl::Span<const std::string> turn_ids, absl::Span<const Forgotten> prompts);
  void DropEmptyRoots();  // clients choose salts: what is empty must cost nothing
  void Erase(Node* node);

  const std::vector<Backend*> ranks_;
  const KvShape shape_;
  const size_t limit_bytes_;
  std::atomic<size_t> bytes_{0};
  std::atomic<int64_t> evictions_{0}, forgotten_{0};
  std::atomic<int64_t> pinned_{0};  // blocks
  std::unique_ptr<Node> root_;
};

}  // namespace sluice
