#include "prefill_server/prefix_tree.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/status.h"

namespace sluice {
namespace {

constexpr char kSaltFollows = '\0';

size_t BytesOf(const std::vector<Buffer>& parts) {
  size_t sum = 0;
  for (const Buffer& part : parts) sum += part.bytes();
  return sum;
}

}  // namespace

// Three kinds of node: a partition's root (no KV), a block of tokens, a kept set.
struct PrefixTree::Node {
  Node* parent = nullptr;
  // A block's children are keyed by their tokens; a partition's root also holds kept sets by turn id.
  std::map<std::vector<int32_t>, std::unique_ptr<Node>> blocks;
  std::map<std::string, std::unique_ptr<Node>, std::less<>> named;
  std::vector<int32_t> tokens;
  std::string name;
  std::set<std::string, std::less<>> turns;  // a block: turns whose prompts' whole blocks end here
  Block kv;
  std::shared_ptr<const KeptSet> kept;  // kept set
  int end_position = 0;                 // tokens from the root to here, included
  int pins = 0;
  absl::Time last_used;

  size_t bytes() const { return BytesOf(kv) + (kept != nullptr ? kept->bytes() : 0); }
  bool evictable() const { return blocks.empty() && named.empty() && pins == 0 && bytes() > 0; }
};

PrefixTree::PrefixTree(std::vector<Backend*> ranks, const KvShape& shape, size_t limit_bytes)
    : ranks_(std::move(ranks)), shape_(shape), limit_bytes_(limit_bytes), root_(std::make_unique<Node>()) {}

PrefixTree::~PrefixTree() {
  // Iteratively: a path may be thousands of blocks deep.
  std::vector<std::unique_ptr<Node>> open;
  open.push_back(std::move(root_));
  while (!open.empty()) {
    std::unique_ptr<Node> node = std::move(open.back());
    open.pop_back();
    for (auto& [tokens, child] : node->blocks) open.push_back(std::move(child));
    for (auto& [name, child] : node->named) open.push_back(std::move(child));
  }
}

PrefixTree::Path::Path(Path&& other) noexcept { *this = std::move(other); }

PrefixTree::Path& PrefixTree::Path::operator=(Path&& other) noexcept {
  std::swap(tree_, other.tree_);
  std::swap(nodes_, other.nodes_);
  return *this;
}

PrefixTree::Path::~Path() {
  for (Node* node : nodes_) {
    if (--node->pins == 0) --tree_->pinned_;
  }
}

int PrefixTree::Path::rows(LayerId) const { return tokens(); }

absl::Status PrefixTree::Path::Read(int rank, LayerId layer, TensorView k, TensorView v, TensorView positions,
                                    Ops& ops) const {
  int64_t row = 0;
  std::vector<CopyArgs> keys, values;
  for (const Node* node : nodes_) {
    keys.push_back({tree_->BlockView(node->kv, rank, layer, 0), k.Slice(1, row, row + kBlockTokens)});
    values.push_back({tree_->BlockView(node->kv, rank, layer, 1), v.Slice(1, row, row + kBlockTokens)});
    row += kBlockTokens;
  }
  ops.CopyEach(keys);
  ops.CopyEach(values);
  std::vector<int32_t> order(row);
  for (int64_t i = 0; i < row; ++i) order[i] = static_cast<int32_t>(i);
  // Heads share one row of positions when its stride is 0.
  const int64_t distinct = positions.stride[0] == 0 ? 1 : positions.shape[0];
  for (int64_t h = 0; h < distinct; ++h) ops.CopyIn(order.data(), positions.At(h));
  return absl::OkStatus();
}

absl::StatusOr<PrefixTree::Block> PrefixTree::NewBlock() const {
  Block block;
  for (Backend* rank : ranks_) {
    SLUICE_ASSIGN_OR_RETURN(Buffer part, rank->Allocate(block_bytes() / ranks_.size()));
    block.push_back(std::move(part));
  }
  return block;
}

TensorView PrefixTree::BlockView(const Block& block, int rank, LayerId layer, int k_or_v) const {
  const int64_t heads = shape_.n_kv_heads / static_cast<int64_t>(ranks_.size());
  const int64_t part = heads * kBlockTokens * shape_.head_dim * static_cast<int64_t>(DTypeSize(shape_.dtype));
  return TensorView::Contiguous(static_cast<char*>(block[rank].data()) + (layer.value() * 2 + k_or_v) * part,
                                shape_.dtype, {heads, kBlockTokens, shape_.head_dim});
}

std::string PartitionOf(absl::string_view owner, absl::string_view cache_salt) {
  if (cache_salt.empty()) return std::string(owner);
  return absl::StrCat(owner, absl::string_view(&kSaltFollows, 1), cache_salt);
}

PrefixTree::Node* PrefixTree::Root(absl::string_view partition) {
  auto found = root_->named.find(partition);
  return found == root_->named.end() ? nullptr : found->second.get();
}

PrefixTree::Node* PrefixTree::MakeRoot(absl::string_view partition) {
  std::unique_ptr<Node>& slot = root_->named[std::string(partition)];
  if (slot == nullptr) {
    slot = std::make_unique<Node>();
    slot->parent = root_.get();
    slot->name = std::string(partition);
  }
  return slot.get();
}

void PrefixTree::DropEmptyRoots() {
  std::erase_if(root_->named,
                [](const auto& root) { return root.second->blocks.empty() && root.second->named.empty(); });
}

PrefixTree::Path PrefixTree::Match(absl::string_view partition, absl::Span<const int32_t> ids, int max_tokens,
                                   absl::Time now) {
  Path path;
  path.tree_ = this;
  Node* node = Root(partition);
  if (node == nullptr) return path;
  const int limit = std::min<int>(max_tokens, static_cast<int>(ids.size()));
  for (int at = 0; at + kBlockTokens <= limit; at += kBlockTokens) {
    auto child = node->blocks.find(std::vector<int32_t>(ids.begin() + at, ids.begin() + at + kBlockTokens));
    if (child == node->blocks.end()) break;
    node = child->second.get();
    node->last_used = now;
    if (node->pins++ == 0) ++pinned_;
    path.nodes_.push_back(node);
  }
  return path;
}

PrefixTree::Extension PrefixTree::Begin(absl::string_view partition, absl::Span<const int32_t> ids,
                                        const Path& path, absl::Time now) {
  Extension extension;
  extension.tree_ = this;
  extension.partition_ = std::string(partition);
  extension.ids_.assign(ids.begin(), ids.end());
  extension.first_token_ = path.tokens();
  const int blocks = (static_cast<int>(ids.size()) - extension.first_token_) / kBlockTokens;
  for (int i = 0; i < blocks; ++i) {
    if (!MakeRoom(block_bytes(), now)) break;
    absl::StatusOr<Block> block = NewBlock();
    if (!block.ok()) break;
    bytes_ += block_bytes();
    extension.blocks_.push_back(*std::move(block));
  }
  return extension;
}

PrefixTree::Extension::Extension(Extension&& other) noexcept { *this = std::move(other); }

PrefixTree::Extension& PrefixTree::Extension::operator=(Extension&& other) noexcept {
  std::swap(partition_, other.partition_);
  std::swap(ids_, other.ids_);
  std::swap(first_token_, other.first_token_);
  std::swap(blocks_, other.blocks_);
  std::swap(tree_, other.tree_);
  return *this;
}

PrefixTree::Extension::~Extension() {
  for (const Block& block : blocks_) tree_->bytes_ -= BytesOf(block);
}

void PrefixTree::Extension::Write(int rank, LayerId layer, TensorView k, TensorView v, Ops& ops) {
  int64_t row = 0;
  std::vector<CopyArgs> keys, values;
  for (const Block& block : blocks_) {
    keys.push_back({k.Slice(1, row, row + kBlockTokens), tree_->BlockView(block, rank, layer, 0)});
    values.push_back({v.Slice(1, row, row + kBlockTokens), tree_->BlockView(block, rank, layer, 1)});
    row += kBlockTokens;
  }
  ops.CopyEach(keys);
  ops.CopyEach(values);
}

void PrefixTree::Publish(Extension extension, absl::string_view turn_id, absl::Time now) {
  // Walk to where the extension begins. If eviction or truncation took the path meanwhile, its blocks are
  // orphans.
  Node* node = extension.blocks_.empty() ? Root(extension.partition_) : MakeRoot(extension.partition_);
  auto tokens_at = [&](int at) {
    return std::vector<int32_t>(extension.ids_.begin() + at, extension.ids_.begin() + at + kBlockTokens);
  };
  int at = 0;
  for (; at < extension.first_token_ && node != nullptr; at += kBlockTokens) {
    auto child = node->blocks.find(tokens_at(at));
    node = child == node->blocks.end() ? nullptr : child->second.get();
  }
  for (Block& block : extension.blocks_) {
    std::unique_ptr<Node>* slot = node == nullptr ? nullptr : &node->blocks[tokens_at(at)];
    if (slot == nullptr || *slot != nullptr) {
      bytes_ -= BytesOf(block);  // no place for it, or another session published the same block first
    } else {
      *slot = std::make_unique<Node>();
      (*slot)->parent = node;
      (*slot)->tokens = tokens_at(at);
      (*slot)->kv = std::move(block);
      (*slot)->end_position = at + kBlockTokens;
    }
    if (slot != nullptr) {
      node = slot->get();
      node->last_used = now;
    }
    at += kBlockTokens;
  }
  extension.blocks_.clear();
  if (node != nullptr && node->end_position > 0 && !turn_id.empty()) node->turns.emplace(turn_id);
}

int PrefixTree::KeptSet::rows(LayerId layer) const {
  return layers[layer.value()].kept.empty() ? 0 : layers[layer.value()].kept[0];
}

absl::Status PrefixTree::KeptSet::Read(int rank, LayerId layer, TensorView k, TensorView v,
                                       TensorView positions, Ops& ops) const {
  const KeptLayer& kept = layers[layer.value()];
  const int64_t heads = static_cast<int64_t>(kept.kept.size());
  const int64_t rows = this->rows(layer);
  for (int n : kept.kept) {
    if (n != rows)
      return absl::UnimplementedError("history=evict over heads that keep different numbers of rows");
  }
  const int64_t begin = rank * k.shape[0], end = begin + k.shape[0];  // of the heads, this rank's
  ops.Copy(kept.k.View(k.dtype, {heads, rows, head_dim}).Slice(0, begin, end), k);
  ops.Copy(kept.v.View(v.dtype, {heads, rows, head_dim}).Slice(0, begin, end), v);
  ops.Copy(kept.positions.View(DType::kI32, {heads, rows}).Slice(0, begin, end), positions);
  return absl::OkStatus();
}

size_t PrefixTree::KeptSet::bytes() const {
  size_t sum = 0;
  for (const KeptLayer& layer : layers) sum += layer.k.bytes() + layer.v.bytes() + layer.positions.bytes();
  return sum;
}

void PrefixTree::PutKept(absl::string_view partition, absl::string_view turn_id,
                         std::shared_ptr<const KeptSet> kept, absl::Time now) {
  if (!MakeRoom(kept->bytes(), now)) return;
  Node* parent = MakeRoot(partition);
  std::unique_ptr<Node>& slot = parent->named[std::string(turn_id)];
  if (slot != nullptr) bytes_ -= slot->bytes();
  slot = std::make_unique<Node>();
  slot->parent = parent;
  slot->name = std::string(turn_id);
  slot->end_position = static_cast<int>(kept->ids.size());
  slot->kept = std::move(kept);
  slot->last_used = now;
  bytes_ += slot->bytes();
}

std::shared_ptr<const PrefixTree::KeptSet> PrefixTree::FindKept(absl::string_view partition,
                                                                absl::string_view turn_id, absl::Time now) {
  Node* parent = Root(partition);
  if (parent == nullptr) return nullptr;
  auto found = parent->named.find(turn_id);
  if (found == parent->named.end()) return nullptr;
  found->second->last_used = now;
  return found->second->kept;
}

PrefixTree::Blocks PrefixTree::blocks() const {
  const int64_t used = static_cast<int64_t>((bytes_ + block_bytes() - 1) / block_bytes());
  const int64_t limit = static_cast<int64_t>(limit_bytes_ / block_bytes()), pinned = pinned_;
  return {std::max<int64_t>(0, limit - used), pinned, std::max<int64_t>(0, used - pinned)};
}

bool PrefixTree::MakeRoom(size_t bytes, absl::Time now) {
  if (bytes > limit_bytes_) return false;
  if (bytes_ + bytes > limit_bytes_) DropEmptyRoots();
  while (bytes_ + bytes > limit_bytes_) {
    // Value of a leaf = seconds of recomputing it per byte and idle second. Recomputing grows with the
    // position (attention over everything before); kFlatTokens weighs the linear layers against it.
    constexpr double kFlatTokens = 4096;
    Node* worst = nullptr;
    double worst_value = 0;
    std::vector<Node*> open = {root_.get()};
    while (!open.empty()) {
      Node* node = open.back();
      open.pop_back();
      for (auto& [tokens, child] : node->blocks) open.push_back(child.get());
      for (auto& [name, child] : node->named) open.push_back(child.get());
      if (!node->evictable()) continue;
      double tokens = node->kept != nullptr ? node->end_position : kBlockTokens;
      double cost = tokens * (kFlatTokens + node->end_position);
      double idle = absl::ToDoubleSeconds(now - node->last_used) + 1e-3;
      double value = cost / (static_cast<double>(node->bytes()) * idle);
      if (worst == nullptr || value < worst_value) {
        worst = node;
        worst_value = value;
      }
    }
    if (worst == nullptr) return false;
    ++evictions_;
    Erase(worst);
  }
  return true;
}

size_t PrefixTree::Forget(absl::string_view owner, absl::Span<const std::string> turn_ids,
                          absl::Span<const Forgotten> prompts) {
  const size_t before = bytes_;
  const std::string salted = std::string(owner) + kSaltFollows;
  if (Node* root = Root(owner)) ForgetIn(root, turn_ids, prompts);
  for (auto root = root_->named.lower_bound(salted);
       root != root_->named.end() && absl::StartsWith(root->first, salted); ++root) {
    ForgetIn(root->second.get(), turn_ids, prompts);
  }
  DropEmptyRoots();
  return before - bytes_;
}

void PrefixTree::ForgetIn(Node* root, absl::Span<const std::string> turn_ids,
                          absl::Span<const Forgotten> prompts) {
  for (const std::string& turn_id : turn_ids) {
    auto kept = root->named.find(turn_id);
    if (kept == root->named.end()) continue;
    Erase(kept->second.get());
    ++forgotten_;
  }
  for (const Forgotten& forgotten : prompts) {
    Node* node = root;
    const absl::Span<const int32_t> ids = forgotten.prompt;
    for (size_t at = 0; at + kBlockTokens <= ids.size(); at += kBlockTokens) {
      auto child = node->blocks.find(std::vector<int32_t>(ids.begin() + at, ids.begin() + at + kBlockTokens));
      if (child == node->blocks.end()) break;
      node = child->second.get();
      for (const std::string& turn_id : turn_ids) node->turns.erase(turn_id);
    }
    while (node != root && node->end_position > forgotten.keep_tokens && node->turns.empty() &&
           node->evictable()) {
      Node* const parent = node->parent;
      Erase(node);
      ++forgotten_;
      node = parent;
    }
  }
}

size_t PrefixTree::ForgetAll() {
  const size_t before = bytes_;
  std::vector<Node*> nodes = {root_.get()};  // parents before children
  for (size_t i = 0; i < nodes.size(); ++i) {
    for (auto& [tokens, child] : nodes[i]->blocks) nodes.push_back(child.get());
    for (auto& [name, child] : nodes[i]->named) nodes.push_back(child.get());
  }
  for (auto node = nodes.rbegin(); node != nodes.rend(); ++node) {
    if (!(*node)->evictable()) continue;
    Erase(*node);
    ++forgotten_;
  }
  DropEmptyRoots();
  return before - bytes_;
}

void PrefixTree::Erase(Node* node) {
  bytes_ -= node->bytes();
  Node* parent = node->parent;
  if (node->kept != nullptr) {
    parent->named.erase(node->name);
  } else {
    parent->blocks.erase(std::vector<int32_t>(node->tokens));
  }
}

}  // namespace sluice
