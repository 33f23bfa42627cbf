// Role: a paged cache on every backend, for the parity of ops that read and write one. Threads: one.
#pragma once

#include <algorithm>
#include <numeric>
#include <vector>

#include "tests/kernels/parity.h"

namespace sluice {

struct Heads {
  int q, kv, dim;
};
inline const Heads kHeads[] = {{32, 8, 128}, {14, 2, 64}, {9, 3, 64}, {6, 2, 64},
                               {2, 2, 64},   {8, 1, 80},  {9, 1, 16}, {24, 2, 128}};

struct Hsa {
  int page = 0, channels = 0, tokens = 0, sums = 0;
};

class PagedParity : public ParityTest {
 protected:
  // A paged cache whose slots hold random rows, in pages of random order; k and v keep what each slot holds.
  struct Cache {
    Heads heads;
    Tensor pages, chunks, slots, page_table, kept_len, row_begin, chunk_table, hsa, value_sums;
    std::vector<Tensor> k, v;  // of each slot: [n_kv_heads, len, d]
    PagedKv device;
  };

  Cache Make(const Heads& h, const std::vector<int>& lengths, const std::vector<Hsa>& hsa, int room = 8) {
    Cache c;
    c.heads = h;
    const int n_slots = static_cast<int>(lengths.size());
    const int max_len = *std::max_element(lengths.begin(), lengths.end()) + room;
    const int max_pages = (max_len + 63) / 64, max_chunks = (max_len + 63) / 64;
    auto shuffled = [&](int n) {
      std::vector<int> v(n);
      std::iota(v.begin(), v.end(), 0);
      std::shuffle(v.begin(), v.end(), random_);
      return v;
    };
    const int n_pages = n_slots * h.kv * max_pages, n_chunks = n_slots * h.kv * max_chunks;
    c.page_table = Ints({n_slots, h.kv, max_pages}, shuffled(n_pages));
    c.chunk_table = Ints({n_slots, h.kv, max_chunks}, shuffled(n_chunks));
    c.pages = Poisoned(kv_dtype(), {n_pages, 2, 64, h.dim});
    c.chunks = Poisoned(kv_dtype(), {n_chunks, 2, h.dim, 64});
    std::vector<int> kept, settings;
    for (int s = 0; s < n_slots; ++s) {
      kept.insert(kept.end(), h.kv, lengths[s]);
      settings.insert(settings.end(), {hsa[s].page, hsa[s].channels, hsa[s].tokens, hsa[s].sums});
    }
    c.kept_len = Ints({n_slots, h.kv}, kept);
    c.row_begin = Ints({n_slots, h.kv}, std::vector<int>(n_slots * h.kv, 0));
    c.hsa = Ints({n_slots, 4}, settings);
    c.value_sums = Poisoned(DType::kF32, {n_slots, h.kv, h.dim});
    c.slots = Ints({n_slots}, shuffled(n_slots));
    c.device.pages = c.pages.device.data;
    c.device.chunks = c.chunks.device.data;
    c.device.dtype = kv_dtype();
    c.device.n_kv_heads = h.kv;
    c.device.head_dim = h.dim;
    c.device.slots = c.slots.device;
    c.device.page_table = c.page_table.device;
    c.device.kept_len = c.kept_len.device;
    c.device.row_begin = c.row_begin.device;
    c.device.chunk_table = c.chunk_table.device;
    c.device.hsa = c.hsa.device;
    c.device.value_sums = c.value_sums.device;
    for (int s = 0; s < n_slots; ++s) {
      c.k.push_back(Random(kv_dtype(), {h.kv, lengths[s], h.dim}));
      c.v.push_back(Random(kv_dtype(), {h.kv, lengths[s], h.dim}));
      for (int g = 0; g < h.kv && lengths[s] > 0; ++g)
        ops().ScatterKv(c.k[s].At(g).device, c.v[s].At(g).device, c.device, s, g, 0);
    }
    return c;
  }
  int slot(const Cache& c, int entry) { return c.slots.host.as<int32_t>()[entry]; }
};

}  // namespace sluice
