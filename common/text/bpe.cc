#include "common/text/bpe.h"

#include <queue>

#include "absl/strings/str_format.h"
#include "common/text/unicode.h"

namespace sluice {
namespace {

uint64_t PairKey(int32_t left, int32_t right) {
  return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
}

// Words up to this length are merged by scanning; most words are, and a scan beats a heap there.
constexpr size_t kShortWord = 24;

}  // namespace

Bpe::Bpe(const std::vector<std::string>& pieces, const std::vector<BpeMerge>& merges, BpeOptions options)
    : options_(options) {
  id_of_piece_.reserve(pieces.size());
  for (size_t id = 0; id < pieces.size(); ++id)
    if (!pieces[id].empty()) id_of_piece_.emplace(pieces[id], static_cast<int32_t>(id));
  for (int byte = 0; byte < 256; ++byte) {
    std::string name =
        options_.byte_level ? std::string(1, static_cast<char>(byte)) : absl::StrFormat("<0x%02X>", byte);
    auto it = id_of_piece_.find(name);
    byte_ids_[byte] = it == id_of_piece_.end() ? -1 : it->second;
  }
  merges_.reserve(merges.size());
  for (const BpeMerge& m : merges) merges_[PairKey(m.left, m.right)] = {m.rank, m.merged};
}

const Bpe::Target* Bpe::Find(int32_t left, int32_t right) const {
  auto it = merges_.find(PairKey(left, right));
  return it == merges_.end() ? nullptr : &it->second;
}

void Bpe::FirstSymbols(absl::string_view word, std::vector<int32_t>* ids) const {
  bool unk_pending = false;
  auto flush = [&] {
    if (unk_pending) ids->push_back(*options_.unk_id);
    unk_pending = false;
  };
  while (!word.empty()) {
    size_t length = options_.byte_level ? 1 : NextUtf8(word).length;
    absl::string_view symbol = word.substr(0, length);
    word.remove_prefix(length);
    int32_t id = -1;
    if (options_.byte_level) {
      id = byte_ids_[static_cast<unsigned char>(symbol[0])];
    } else if (auto it = id_of_piece_.find(symbol); it != id_of_piece_.end()) {
      id = it->second;
    }
    if (id >= 0) {
      flush();
      ids->push_back(id);
      continue;
    }
    if (options_.byte_fallback) {
      bool all = true;
      for (unsigned char c : symbol) all = all && byte_ids_[c] >= 0;
      if (all) {
        for (unsigned char c : symbol) ids->push_back(byte_ids_[c]);
        continue;
      }
    }
    if (!options_.unk_id) continue;
    if (!options_.fuse_unk) flush();
    unk_pending = true;
  }
  flush();
}

void Bpe::Encode(absl::string_view word, std::vector<int32_t>* ids) const {
  if (options_.ignore_merges) {
    if (auto it = id_of_piece_.find(word); it != id_of_piece_.end()) {
      ids->push_back(it->second);
      return;
    }
  }
  std::vector<int32_t> symbols;
  symbols.reserve(word.size());
  FirstSymbols(word, &symbols);
  if (symbols.size() <= kShortWord) {
    MergeShort(&symbols);
  } else {
    MergeLong(&symbols);
  }
  ids->insert(ids->end(), symbols.begin(), symbols.end());
}

void Bpe::MergeShort(std::vector<int32_t>* ids) const {
  // targets[i]: what ids[i], ids[i + 1] merge into.
  const Target* targets[kShortWord] = {};
  size_t n = ids->size();
  auto look_up = [&](size_t i) { targets[i] = i + 1 < n ? Find((*ids)[i], (*ids)[i + 1]) : nullptr; };
  for (size_t i = 0; i < n; ++i) look_up(i);
  while (true) {
    size_t best = n;
    for (size_t i = 0; i + 1 < n; ++i)
      if (targets[i] != nullptr && (best == n || targets[i]->rank < targets[best]->rank)) best = i;
    if (best == n) break;
    (*ids)[best] = targets[best]->merged;
    for (size_t i = best + 1; i + 1 < n; ++i) {
      (*ids)[i] = (*ids)[i + 1];
      targets[i] = targets[i + 1];
    }
    --n;
    look_up(best);
    if (best > 0) look_up(best - 1);
  }
  ids->resize(n);
}

void Bpe::MergeLong(std::vector<int32_t>* ids) const {
  struct Symbol {
    int32_t id, previous, next;  // id -1: merged away; previous/next -1: none
  };
  struct Candidate {
    int32_t rank, position, merged;
    bool operator<(const Candidate& o) const {  // std::priority_queue pops the largest
      return rank != o.rank ? rank > o.rank : position > o.position;
    }
  };
  int32_t n = static_cast<int32_t>(ids->size());
  std::vector<Symbol> symbols(n);
  for (int32_t i = 0; i < n; ++i) symbols[i] = {(*ids)[i], i - 1, i + 1 < n ? i + 1 : -1};
  std::vector<Candidate> first;
  for (int32_t i = 0; i + 1 < n; ++i)
    if (const Target* t = Find(symbols[i].id, symbols[i + 1].id)) first.push_back({t->rank, i, t->merged});
  std::priority_queue<Candidate> queue(std::less<Candidate>(), std::move(first));
  auto offer = [&](int32_t left, int32_t right) {
    if (left < 0 || right < 0) return;
    if (const Target* t = Find(symbols[left].id, symbols[right].id)) queue.push({t->rank, left, t->merged});
  };
  while (!queue.empty()) {
    Candidate top = queue.top();
    queue.pop();
    Symbol& left = symbols[top.position];
    if (left.id < 0 || left.next < 0) continue;
    // The pair may have changed since the offer.
    const Target* t = Find(left.id, symbols[left.next].id);
    if (t == nullptr || t->merged != top.merged) continue;
    Symbol& right = symbols[left.next];
    left.id = top.merged;
    left.next = right.next;
    if (right.next >= 0) symbols[right.next].previous = top.position;
    right.id = -1;
    offer(left.previous, top.position);
    offer(top.position, left.next);
  }
  ids->clear();
  for (int32_t i = n > 0 ? 0 : -1; i >= 0; i = symbols[i].next) ids->push_back(symbols[i].id);
}

}  // namespace sluice
