// Parity of the paged cache, of dense decode attention and of hybrid sparse attention.
#include <algorithm>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "tests/kernels/paged_parity.h"

namespace sluice {
namespace {

class DecodeParity : public PagedParity {
 protected:
  // The value of a bound of a page, from the device's bytes.
  struct Bounds {
    std::vector<char> bytes;
    const Cache* cache;
    double Get(int slot, int head, int page_rows, int page, int channel, int half) const {
      const TensorView& table = cache->chunk_table.host;
      const int in_chunk = page_rows == 1 ? 128 : 64;
      const int chunk =
          table.as<int32_t>()[slot * table.stride[0] + head * table.stride[1] + page / in_chunk];
      if (page_rows == 1) half = page % 128 / 64;
      TensorView view = cache->chunks.host;
      view.data = const_cast<char*>(bytes.data() + 256);
      return reference::Get(view.At(chunk), half, channel, page % 64);
    }
  };
  // Checks every bound of a slot against rows [0, len) of k.
  void CheckBounds(const Cache& c, int slot, int page, const TensorView& k, const std::string& what) {
    Bounds bounds{Download(c.chunks), &c};
    const int len = static_cast<int>(k.shape[1]);
    int wrong = 0;
    for (int g = 0; g < c.heads.kv; ++g) {
      for (int j = 0; j * page < len; ++j) {
        for (int d = 0; d < c.heads.dim; ++d) {
          double low = reference::Get(k, g, j * page, d), high = low;
          for (int x = j * page; x < std::min(len, (j + 1) * page); ++x) {
            low = std::min(low, reference::Get(k, g, x, d));
            high = std::max(high, reference::Get(k, g, x, d));
          }
          wrong += bounds.Get(slot, g, page, j, d, 0) != low || bounds.Get(slot, g, page, j, d, 1) != high;
        }
      }
    }
    EXPECT_EQ(wrong, 0) << what;
  }

  // Dense attention of the reference over rows [begin, len) of every entry.
  void ReferenceDense(const Cache& c, const Tensor& q, int begin, Tensor* out) {
    const int group = c.heads.q / c.heads.kv;
    for (int b = 0; b < q.host.shape[0]; ++b) {
      const Tensor& k = c.k[slot(c, b)];
      std::vector<int> rows(k.host.shape[1] - begin);
      std::iota(rows.begin(), rows.end(), begin);
      for (int g = 0; g < c.heads.kv; ++g) {
        Tensor part = out->Heads(c.heads.q).At(b).Slice(0, g * group, (g + 1) * group);
        reference::DecodeAttention(q.host.At(b).Slice(0, g * group, (g + 1) * group), k.host.At(g),
                                   c.v[slot(c, b)].host.At(g), rows, part.host);
      }
    }
  }
  // Hybrid sparse attention of the reference; returns the smallest margin of its choices.
  double ReferenceHsa(const Cache& c, const Tensor& q, const std::vector<Hsa>& hsa, Tensor* out) {
    const int group = c.heads.q / c.heads.kv;
    double margin = 1;
    for (int b = 0; b < q.host.shape[0]; ++b) {
      const int s = slot(c, b);
      for (int g = 0; g < c.heads.kv; ++g) {
        TensorView part_q = q.host.At(b).Slice(0, g * group, (g + 1) * group);
        auto choice =
            reference::ChooseHsaRows(part_q, c.k[s].host.At(g), hsa[s].page, hsa[s].channels, hsa[s].tokens);
        margin = std::min(margin, choice.margin);
        Tensor part = out->Heads(c.heads.q).At(b).Slice(0, g * group, (g + 1) * group);
        reference::DecodeAttention(part_q, c.k[s].host.At(g), c.v[s].host.At(g), choice.rows, part.host);
      }
    }
    return margin;
  }
};
INSTANTIATE_TEST_SUITE_P(Backends, DecodeParity, testing::ValuesIn(AllBackends()), CaseName);

TEST_P(DecodeParity, ScatterKvFillsPagesAndBounds) {
  const Heads h = {6, 2, 64};
  for (int page : {0, 1, 2, 3, 4, 7}) {
    for (int len : {1, 63, 64, 65, 200, 300}) {
      Cache c = Make(h, {len, 5}, {{page, 8, 8}, {}});
      const TensorView table = c.page_table.host;
      for (int s = 0; s < 2; ++s) {
        for (int g = 0; g < h.kv; ++g) {
          for (int row = 0; row < c.k[s].host.shape[1]; ++row) {
            TensorView to =
                c.pages.host.At(table.as<int32_t>()[s * table.stride[0] + g * table.stride[1] + row / 64]);
            for (int d = 0; d < h.dim; ++d) {
              reference::Set(to, reference::Get(c.k[s].host, g, row, d), 0, row % 64, d);
              reference::Set(to, reference::Get(c.v[s].host, g, row, d), 1, row % 64, d);
            }
          }
        }
      }
      ExpectSame(c.pages, 0, absl::StrCat("page ", page, " len ", len));
      if (page > 0) CheckBounds(c, 0, page, c.k[0].host, absl::StrCat("page ", page, " len ", len));
      if (page == 0) ExpectSame(c.chunks, 0, "no bounds kept");
    }
  }
}

TEST_P(DecodeParity, ScatterKvInPartsEqualsOnePart) {
  const Heads h = {6, 2, 64};
  for (int page : {1, 2, 3, 4}) {
    Cache c = Make(h, {0}, {{page, 8, 8}}, 230);
    Tensor k = Random(kv_dtype(), {h.kv, 223, 64}), v = Random(kv_dtype(), {h.kv, 223, 64});
    for (int g = 0; g < h.kv; ++g) {
      int row = 0;
      for (int n : {1, 1, 5, 58, 64, 3, 91}) {
        ops().ScatterKv(k.At(g).Slice(0, row, row + n).device, v.At(g).Slice(0, row, row + n).device,
                        c.device, 0, g, row);
        row += n;
      }
    }
    CheckBounds(c, 0, page, k.host, absl::StrCat("page ", page));
  }
}

// Bounds kept up row by row equal bounds rebuilt, after every row.
TEST_P(DecodeParity, AppendKvKeepsBoundsExact) {
  const Heads h = {6, 2, 64};
  for (int page : {1, 2, 3, 4, 17}) {
    Cache c = Make(h, {0, 130}, {{page, 8, 8}, {page, 8, 8}}, 5 * 17 + 1);
    Tensor host_k = Poisoned(kv_dtype(), {h.kv, 5 * page, h.dim});
    for (int row = 0; row < 5 * page; ++row) {
      Tensor k = Random(DType::kF32, {2, h.kv * h.dim}), v = Random(DType::kF32, {2, h.kv * h.dim});
      ops().AppendKv(k.Heads(h.kv).device, v.Heads(h.kv).device, c.device);
      for (int b = 0; b < 2; ++b)
        for (int g = 0; g < h.kv; ++g) ++c.kept_len.host.as<int32_t>()[slot(c, b) * h.kv + g];
      const int entry = slot(c, 0) == 0 ? 0 : 1;
      for (int g = 0; g < h.kv; ++g)
        for (int d = 0; d < h.dim; ++d)
          reference::Set(host_k.host, reference::Get(k.Heads(h.kv).host, entry, g, d), g, row, d);
      ExpectSame(c.kept_len, 0);
      CheckBounds(c, 0, page, host_k.host.Slice(1, 0, row + 1), absl::StrCat("page ", page, " row ", row));
    }
    CheckBounds(c, 1, page, c.k[1].host.Slice(1, 0, 130 / page * page), "whole pages of the rows before");
  }
}

TEST_P(DecodeParity, PagedAttention) {
  for (const Heads& h : kHeads) {
    const std::vector<int> lengths = {1, 63, 64, 65, 512, 513, 1300};
    Cache c = Make(h, lengths, std::vector<Hsa>(lengths.size()));
    const int batch = static_cast<int>(lengths.size());
    Tensor q = Random(DType::kF32, {batch, h.q * h.dim}), out = Poisoned(DType::kF32, {batch, h.q * h.dim});
    ops().PagedAttention(q.Heads(h.q).device, c.device, out.Heads(h.q).device);
    ReferenceDense(c, q.Heads(h.q), 0, &out);
    ExpectSame(out, DecodeTolerance(GetParam(), h.dim), absl::StrCat(h.q, "/", h.kv, "x", h.dim));
  }
}

// More rows in a part than a GPU block stages at once.
TEST_P(DecodeParity, PagedAttentionOfManyRows) {
  const Heads h = {128, 128, 64};
  Cache c = Make(h, {4200}, {{}});
  Tensor q = Random(DType::kF32, {1, h.q * h.dim}), out = Poisoned(DType::kF32, {1, h.q * h.dim});
  ops().PagedAttention(q.Heads(h.q).device, c.device, out.Heads(h.q).device);
  ReferenceDense(c, q.Heads(h.q), 0, &out);
  ExpectSame(out, DecodeTolerance(GetParam(), h.dim));
}

TEST_P(DecodeParity, PagedAttentionStartsAtRowBegin) {
  const Heads h = {14, 2, 64};
  for (int begin : {1, 63, 64, 100, 512, 700, 999}) {
    Cache c = Make(h, {1000, 1000}, {{}, {}});
    for (int i = 0; i < 4; ++i) c.row_begin.host.as<int32_t>()[i] = begin;
    Upload(c.row_begin);
    Tensor q = Random(DType::kF32, {2, h.q * h.dim}), out = Poisoned(DType::kF32, {2, h.q * h.dim});
    ops().PagedAttention(q.Heads(h.q).device, c.device, out.Heads(h.q).device);
    ReferenceDense(c, q.Heads(h.q), begin, &out);
    ExpectSame(out, DecodeTolerance(GetParam(), h.dim), absl::StrCat("begin ", begin));
  }
}

// Heads of a sequence may be of any length: a GPU block's share may end in one and begin in the next.
TEST_P(DecodeParity, PagedAttentionOfHeadsOfTheirOwnLengths) {
  for (const Heads& h : {Heads{32, 8, 128}, Heads{14, 2, 64}, Heads{80, 40, 64}, Heads{48, 3, 128}}) {
    const int group = h.q / h.kv;
    Cache c = Make(h, {2500, 700, 90}, {{}, {}, {}});
    for (int s = 0; s < 3; ++s)
      for (int g = 0; g < h.kv; ++g) {
        const int len = static_cast<int>(c.k[s].host.shape[1]);
        c.kept_len.host.as<int32_t>()[s * h.kv + g] = std::max(1, len - 83 * ((5 * g + s) % 11));
        c.row_begin.host.as<int32_t>()[s * h.kv + g] =
            g % 3 == 2 ? 70 % c.kept_len.host.as<int32_t>()[s * h.kv + g] : 0;
      }
    Upload(c.kept_len);
    Upload(c.row_begin);
    Tensor q = Random(DType::kF32, {3, h.q * h.dim}), out = Poisoned(DType::kF32, {3, h.q * h.dim});
    ops().PagedAttention(q.Heads(h.q).device, c.device, out.Heads(h.q).device);
    for (int b = 0; b < 3; ++b) {
      const int s = slot(c, b);
      for (int g = 0; g < h.kv; ++g) {
        const int begin = c.row_begin.host.as<int32_t>()[s * h.kv + g];
        std::vector<int> rows(c.kept_len.host.as<int32_t>()[s * h.kv + g] - begin);
        std::iota(rows.begin(), rows.end(), begin);
        reference::DecodeAttention(q.Heads(h.q).host.At(b).Slice(0, g * group, (g + 1) * group),
                                   c.k[s].host.At(g), c.v[s].host.At(g), rows,
                                   out.Heads(h.q).At(b).Slice(0, g * group, (g + 1) * group).host);
      }
    }
    ExpectSame(out, DecodeTolerance(GetParam(), h.dim), absl::StrCat(h.q, "/", h.kv, "x", h.dim));
  }
}

// A row that was appended by the op before is seen, also where it is the first of a page.
TEST_P(DecodeParity, PagedAttentionSeesTheRowBeforeIt) {
  const Heads h = {8, 2, 128};
  const int group = h.q / h.kv, room = 70;
  Cache c = Make(h, {0, 500}, {{}, {}}, room);
  std::vector<Tensor> k, v;  // of each entry, all its rows
  std::vector<int> lengths;
  for (int b = 0; b < 2; ++b) {
    const Tensor &old_k = c.k[slot(c, b)], &old_v = c.v[slot(c, b)];
    lengths.push_back(static_cast<int>(old_k.host.shape[1]));
    k.push_back(Poisoned(kv_dtype(), {h.kv, lengths[b] + room, h.dim}));
    v.push_back(Poisoned(kv_dtype(), {h.kv, lengths[b] + room, h.dim}));
    for (int g = 0; g < h.kv; ++g)
      for (int x = 0; x < lengths[b]; ++x)
        for (int d = 0; d < h.dim; ++d) {
          reference::Set(k[b].host, reference::Get(old_k.host, g, x, d), g, x, d);
          reference::Set(v[b].host, reference::Get(old_v.host, g, x, d), g, x, d);
        }
  }
  for (int step = 0; step < room; ++step) {
    Tensor new_k = Random(DType::kF32, {2, h.kv * h.dim}), new_v = Random(DType::kF32, {2, h.kv * h.dim});
    Tensor q = Random(DType::kF32, {2, h.q * h.dim}), out = Poisoned(DType::kF32, {2, h.q * h.dim});
    ops().AppendKv(new_k.Heads(h.kv).device, new_v.Heads(h.kv).device, c.device);
    ops().PagedAttention(q.Heads(h.q).device, c.device, out.Heads(h.q).device);
    for (int b = 0; b < 2; ++b) {
      for (int g = 0; g < h.kv; ++g) {
        for (int d = 0; d < h.dim; ++d) {
          reference::Set(k[b].host, reference::Get(new_k.Heads(h.kv).host, b, g, d), g, lengths[b], d);
          reference::Set(v[b].host, reference::Get(new_v.Heads(h.kv).host, b, g, d), g, lengths[b], d);
        }
        std::vector<int> rows(lengths[b] + 1);
        std::iota(rows.begin(), rows.end(), 0);
        reference::DecodeAttention(q.Heads(h.q).host.At(b).Slice(0, g * group, (g + 1) * group),
                                   k[b].host.At(g), v[b].host.At(g), rows,
                                   out.Heads(h.q).At(b).Slice(0, g * group, (g + 1) * group).host);
      }
      ++lengths[b];
    }
    ExpectSame(out, DecodeTolerance(GetParam(), h.dim), absl::StrCat("step ", step));
  }
}

// What a product rounds anyway may be written rounded: the same bits.
TEST_P(DecodeParity, AttentionWritesWhatProductsRead) {
  for (const Heads& h : kHeads) {
    Cache c = Make(h, {65, 1300}, std::vector<Hsa>(2, {3, h.dim / 2, 40}));
    const Tensor q = Random(DType::kF32, {2, h.q * h.dim});
    for (bool sparse : {false, true}) {
      auto attend = [&](const Tensor& out) {
        sparse ? ops().HsaAttention(q.Heads(h.q).device, c.device, out.Heads(h.q).device)
               : ops().PagedAttention(q.Heads(h.q).device, c.device, out.Heads(h.q).device);
      };
      Tensor wide = Poisoned(DType::kF32, {2, h.q * h.dim});
      Tensor out = Poisoned(backend().product_input(), {2, h.q * h.dim});
      attend(wide);
      attend(out);
      ops().CopyOut(wide.device, wide.host.data);
      ASSERT_TRUE(ops().Sync().ok());
      for (int b = 0; b < 2; ++b)
        for (int i = 0; i < h.q * h.dim; ++i) reference::Set(out.host, reference::Get(wide.host, b, i), b, i);
      ExpectSame(out, 0, absl::StrCat(h.q, "/", h.kv, "x", h.dim, " sparse ", sparse));
    }
  }
}

TEST_P(DecodeParity, HsaAttention) {
  for (const Heads& h : kHeads) {
    for (int page : {1, 2, 3, 4}) {
      for (int tokens : {1, 7, 64, 100}) {
        const std::vector<Hsa> hsa = {
            {page, h.dim / 2, tokens}, {page, h.dim, tokens + 3}, {page, h.dim / 3, tokens}};
        for (int attempt = 0;; ++attempt) {
          ASSERT_LT(attempt, 20);
          Cache c = Make(h, {3 * page + 1, 300, 413}, hsa);
          Tensor q = Random(DType::kF32, {3, h.q * h.dim}), out = Poisoned(DType::kF32, {3, h.q * h.dim});
          // Draw again where f32 sums in another order could choose another row.
          if (ReferenceHsa(c, q.Heads(h.q), hsa, &out) < 1e-5) continue;
          ops().HsaAttention(q.Heads(h.q).device, c.device, out.Heads(h.q).device);
          ExpectSame(out, DecodeTolerance(GetParam(), h.dim),
                     absl::StrCat(h.q, "/", h.kv, "x", h.dim, " page ", page, " tokens ", tokens));
          break;
        }
      }
    }
  }
}

TEST_P(DecodeParity, HsaWithEverythingIsDense) {
  for (const Heads& h : kHeads) {
    for (int page : {1, 3}) {
      const std::vector<Hsa> hsa = {{page, h.dim, 100000}, {page, h.dim, 129}};
      Cache c = Make(h, {700, 129}, hsa);
      Tensor q = Random(DType::kF32, {2, h.q * h.dim}), out = Poisoned(DType::kF32, {2, h.q * h.dim});
      ops().HsaAttention(q.Heads(h.q).device, c.device, out.Heads(h.q).device);
      ReferenceDense(c, q.Heads(h.q), 0, &out);
      ExpectSame(out, DecodeTolerance(GetParam(), h.dim));
    }
  }
}

// Pages of equal keys tie exactly: the lowest rows win, and a cut inside a page keeps its lowest rows.
TEST_P(DecodeParity, HsaTiesGoToTheLowestRows) {
  const Heads h = {6, 2, 64};
  for (int page : {1, 2, 3, 4}) {
    for (int tokens : {1, 5, 50, 130}) {
      const std::vector<Hsa> hsa = {{page, 32, tokens}};
      Cache c = Make(h, {200}, hsa);
      for (int g = 0; g < h.kv; ++g)  // three kinds of rows, alternating by page
        for (int x = 0; x < 200; ++x)
          for (int d = 0; d < h.dim; ++d)
            reference::Set(c.k[0].host, reference::Get(c.k[0].host, g, x / page % 3, d), g, x, d);
      for (int g = 0; g < h.kv; ++g)
        for (int x = 0; x < page * 3; ++x)
          for (int d = 0; d < h.dim; ++d)
            reference::Set(c.k[0].host, reference::Get(c.k[0].host, g, 3 * page + x, d), g, x, d);
      Upload(c.k[0]);
      for (int g = 0; g < h.kv; ++g)
        ops().ScatterKv(c.k[0].At(g).device, c.v[0].At(g).device, c.device, 0, g, 0);
      Tensor q = Random(DType::kF32, {1, h.q * h.dim}), out = Poisoned(DType::kF32, {1, h.q * h.dim});
      ops().HsaAttention(q.Heads(h.q).device, c.device, out.Heads(h.q).device);
      ReferenceHsa(c, q.Heads(h.q), hsa, &out);
      ExpectSame(out, DecodeTolerance(GetParam(), h.dim), absl::StrCat("page ", page, " tokens ", tokens));
    }
  }
}

// With one query head a page's score bounds every row of it, on the channels looked at.
TEST_P(DecodeParity, PageScoreIsAnUpperBoundForOneHead) {
  const Heads h = {2, 2, 64};
  for (int page : {2, 3, 4}) {
    Cache c = Make(h, {203}, {{page, 24, 64}});
    Tensor q = Random(DType::kF32, {1, h.q * h.dim});
    Bounds bounds{Download(c.chunks), &c};
    for (int g = 0; g < h.kv; ++g) {
      TensorView head_q = q.Heads(h.q).host.At(0).Slice(0, g, g + 1), k = c.k[0].host.At(g);
      auto choice = reference::ChooseHsaRows(head_q, k, page, 24, 64);
      for (int x = 0; x < 203; ++x) {
        double score = 0, dot = 0;
        for (int d : choice.channels) {
          const double qd = reference::Get(head_q, 0, d);
          score += qd * bounds.Get(0, g, page, x / page, d, qd > 0);
          dot += qd * reference::Get(k, x, d);
        }
        EXPECT_GE(score, dot - 1e-9);
        EXPECT_NEAR(score, choice.page_scores[0][x / page], 1e-9);
      }
    }
  }
}

// More pages and more chosen rows than a GPU block holds at once.
TEST_P(DecodeParity, HsaOfManyPages) {
  const Heads h = {2, 2, 64};
  const std::vector<Hsa> hsa = {{1, 16, 5000}, {2, 24, 100}};
  for (int attempt = 0;; ++attempt) {
    ASSERT_LT(attempt, 20);
    Cache c = Make(h, {9001, 300}, hsa);
    Tensor q = Random(DType::kF32, {2, h.q * h.dim}), out = Poisoned(DType::kF32, {2, h.q * h.dim});
    if (ReferenceHsa(c, q.Heads(h.q), hsa, &out) < 1e-5) continue;
    ops().HsaAttention(q.Heads(h.q).device, c.device, out.Heads(h.q).device);
    ExpectSame(out, DecodeTolerance(GetParam(), h.dim));
    break;
  }
}

// Batch of N = N singles, bit for bit, for both ways to attend; also where a GPU groups its blocks by the
// batch, and where some of them cannot hold all pages.
TEST_P(DecodeParity, AnEntryDoesNotDependOnItsBatch) {
  for (const Heads& h : {Heads{14, 2, 64}, Heads{16, 8, 64}, Heads{56, 8, 64}}) {
    std::vector<int> lengths = {1300, 64, 700, 2100, 333};
    std::vector<Hsa> hsa(lengths.size(), {3, 30, 100});
    hsa[2] = hsa[3] = {1, 40, 600};
    for (int i = 0; i < 15; ++i) {
      lengths.push_back(lengths[i] + 1);
      hsa.push_back(hsa[i]);
    }
    Cache c = Make(h, lengths, hsa);
    Tensor q = Random(DType::kF32, {20, h.q * h.dim});
    for (bool sparse : {false, true}) {
      auto attend = [&](int begin, int end, const Tensor& out) {
        PagedKv part = c.device;
        part.slots = c.slots.Slice(0, begin, end).device;
        const Tensor query = q.Heads(h.q).Slice(0, begin, end), to = out.Heads(h.q).Slice(0, begin, end);
        sparse ? ops().HsaAttention(query.device, part, to.device)
               : ops().PagedAttention(query.device, part, to.device);
      };
      Tensor alone = Poisoned(DType::kF32, {20, h.q * h.dim});
      for (int b = 0; b < 20; ++b) attend(b, b + 1, alone);
      for (int batch : {5, 20}) {
        Tensor together = Poisoned(DType::kF32, {20, h.q * h.dim});
        for (int b = 0; b < 20; b += batch) attend(b, b + batch, together);
        EXPECT_EQ(Download(together), Download(alone)) << batch << " " << sparse;
      }
    }
  }
}

}  // namespace
}  // namespace sluice
