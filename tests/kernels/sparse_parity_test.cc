// Parity of the decode attentions that score everything and read the best (quest, sparq, exact top-k), and of
// the sums of values that sparq keeps.
#include <algorithm>
#include <functional>

#include "absl/strings/str_cat.h"
#include "kernels/cpu/bf16.h"
#include "tests/kernels/paged_parity.h"

namespace sluice {
namespace {

using reference::RowChoice;

class SparseParity : public PagedParity {
 protected:
  // Where sums in another order, or of queries in two parts, cannot choose another row.
  double SafeMargin() const { return 1e-5 + GetParam().decode_error; }
  // What the shares of the mean add: an approximate softmax as exact as scores are, and values of at most 6.
  double SparqTolerance(int head_dim) const {
    return DecodeTolerance(GetParam(), head_dim) + 6 * AttentionTolerance(head_dim);
  }

  // Attention of the reference: a group at a time, or a query head. choose(q, k, settings, shares); shares is
  // filled by methods that leave something to the mean of the values. Returns the smallest margin.
  using Choose =
      std::function<RowChoice(TensorView q, TensorView k, const Hsa& settings, std::vector<double>* shares)>;
  double Reference(const Cache& c, const Tensor& q, const std::vector<Hsa>& settings, bool per_head,
                   const Choose& choose, Tensor* out) {
    const int group = c.heads.q / c.heads.kv, at_once = per_head ? 1 : group;
    double margin = 1;
    for (int b = 0; b < q.host.shape[0]; ++b) {
      const int s = slot(c, b);
      for (int h = 0; h < c.heads.q; h += at_once) {
        const TensorView part_q = q.host.At(b).Slice(0, h, h + at_once), k = c.k[s].host.At(h / group);
        const TensorView v = c.v[s].host.At(h / group);
        const TensorView to = out->Heads(c.heads.q).At(b).Slice(0, h, h + at_once).host;
        std::vector<double> shares;
        const RowChoice choice = choose(part_q, k, settings[s], &shares);
        margin = std::min(margin, choice.margin);
        reference::DecodeAttention(part_q, k, v, choice.rows, to);
        if (!shares.empty()) reference::AddMeanValue(v, shares, to);
      }
    }
    return margin;
  }
  static RowChoice Quest(TensorView q, TensorView k, const Hsa& s, std::vector<double>*) {
    return reference::ChooseQuestRows(q, k, s.page, s.tokens);
  }
  static RowChoice Sparq(TensorView q, TensorView k, const Hsa& s, std::vector<double>*) {
    std::vector<double> shares;
    return reference::ChooseSparqRows(q, k, s.channels, s.tokens, &shares);
  }
  static RowChoice SparqWithMean(TensorView q, TensorView k, const Hsa& s, std::vector<double>* shares) {
    return reference::ChooseSparqRows(q, k, s.channels, s.tokens, shares);
  }
  static RowChoice TopK(TensorView q, TensorView k, const Hsa& s, std::vector<double>*) {
    return reference::ChooseTopRows(q, k, s.tokens);
  }

  using Attend = std::function<void(TensorView q, const PagedKv& cache, TensorView out)>;
  struct Method {
    const char* name;
    bool per_head;
    Choose choose;
    Attend attend;
  };
  std::vector<Method> Methods() {
    return {
        {"quest", true, Quest,
         [this](TensorView q, const PagedKv& cache, TensorView out) { ops().QuestAttention(q, cache, out); }},
        {"sparq", false, SparqWithMean,
         [this](TensorView q, const PagedKv& cache, TensorView out) {
           ops().SparqAttention(q, cache, /*mean_value=*/true, out);
         }},
        {"sparq without mean", false, Sparq,
         [this](TensorView q, const PagedKv& cache, TensorView out) {
           ops().SparqAttention(q, cache, /*mean_value=*/false, out);
         }},
        {"top k", true, TopK,
         [this](TensorView q, const PagedKv& cache, TensorView out) {
           ops().TopKAttention(q, cache, /*per_group=*/false, out);
         }},
        {"top k of a group", false, TopK,
         [this](TensorView q, const PagedKv& cache, TensorView out) {
           ops().TopKAttention(q, cache, /*per_group=*/true, out);
         }},
    };
  }
  // The settings of a slot for a method by its name.
  static Hsa For(const Method& method, int page, int channels, int tokens) {
    const std::string name = method.name;
    if (name == "quest") return {page, 1, tokens};
    if (name == "sparq") return {1, channels, tokens, 1};
    if (name == "sparq without mean") return {1, channels, tokens};
    return {0, 0, tokens};
  }
  void SumAll(const Cache& c, int n_slots) {
    for (int s = 0; s < n_slots; ++s) ops().SumValues(c.device, s);
  }

  // Draws caches and queries until no choice is close, then compares.
  void Compare(const Heads& h, const std::vector<int>& lengths, const Method& method,
               const std::vector<Hsa>& settings, const std::string& what) {
    const int batch = static_cast<int>(lengths.size());
    for (int attempt = 0;; ++attempt) {
      ASSERT_LT(attempt, 40) << method.name << " " << what;
      Cache c = Make(h, lengths, settings);
      SumAll(c, batch);
      Tensor q = Random(DType::kF32, {batch, h.q * h.dim}), out = Poisoned(DType::kF32, {batch, h.q * h.dim});
      if (Reference(c, q.Heads(h.q), settings, method.per_head, method.choose, &out) < SafeMargin()) continue;
      method.attend(q.Heads(h.q).device, c.device, out.Heads(h.q).device);
      ExpectSame(out, SparqTolerance(h.dim),
                 absl::StrCat(method.name, " ", h.q, "/", h.kv, "x", h.dim, " ", what));
      return;
    }
  }
};
INSTANTIATE_TEST_SUITE_P(Backends, SparseParity, testing::ValuesIn(AllBackends()), CaseName);

TEST_P(SparseParity, EveryMethodOnEveryShape) {
  for (const Method& method : Methods()) {
    for (const Heads& h : kHeads) {
      for (int tokens : {1, 7, 64, 100}) {
        const std::vector<Hsa> settings = {For(method, 16, h.dim / 4, tokens),
                                           For(method, 5, h.dim, tokens + 3), For(method, 2, 3, tokens)};
        Compare(h, {17, 300, 413}, method, settings, absl::StrCat("tokens ", tokens));
      }
    }
  }
}

// More rows than a GPU block has in a step, and than fit a chunk of bounds.
TEST_P(SparseParity, LongCaches) {
  const Heads h = {4, 2, 64};
  for (const Method& method : Methods())
    Compare(h, {5003, 300}, method, {For(method, 3, 16, 3000), For(method, 16, 16, 48)}, "long");
}

// At the setting that reads everything each method is dense attention.
TEST_P(SparseParity, WithEverythingItIsDense) {
  for (const Method& method : Methods()) {
    for (const Heads& h : kHeads) {
      const std::vector<Hsa> settings = {For(method, 16, h.dim, 100000), For(method, 3, h.dim, 129)};
      Cache c = Make(h, {700, 129}, settings);
      SumAll(c, 2);
      Tensor q = Random(DType::kF32, {2, h.q * h.dim}), out = Poisoned(DType::kF32, {2, h.q * h.dim});
      const auto all = [](TensorView, TensorView k, const Hsa&, std::vector<double>*) {
        RowChoice choice = {std::vector<int>(k.shape[0]), 1};
        std::iota(choice.rows.begin(), choice.rows.end(), 0);
        return choice;
      };
      Reference(c, q.Heads(h.q), settings, false, all, &out);
      method.attend(q.Heads(h.q).device, c.device, out.Heads(h.q).device);
      ExpectSame(out, DecodeTolerance(GetParam(), h.dim), method.name);
    }
  }
}

// Equal keys tie exactly: the lowest page or row wins.
TEST_P(SparseParity, TiesGoToTheLowest) {
  const Heads h = {6, 2, 64};
  for (const Method& method : Methods()) {
    for (int tokens : {5, 50, 130}) {
      const std::vector<Hsa> settings = {For(method, 5, 32, tokens)};
      Cache c = Make(h, {200}, settings);
      for (int g = 0; g < h.kv; ++g)  // three kinds of pages of 5 equal rows, in turn
        for (int x = 0; x < 200; ++x)
          for (int d = 0; d < h.dim; ++d)
            reference::Set(c.k[0].host, reference::Get(c.k[0].host, g, x / 5 % 3, d), g, x, d);
      Upload(c.k[0]);
      for (int g = 0; g < h.kv; ++g)
        ops().ScatterKv(c.k[0].At(g).device, c.v[0].At(g).device, c.device, 0, g, 0);
      SumAll(c, 1);
      Tensor q = Random(DType::kF32, {1, h.q * h.dim}), out = Poisoned(DType::kF32, {1, h.q * h.dim});
      Reference(c, q.Heads(h.q), settings, method.per_head, method.choose, &out);
      method.attend(q.Heads(h.q).device, c.device, out.Heads(h.q).device);
      ExpectSame(out, SparqTolerance(h.dim), absl::StrCat(method.name, " tokens ", tokens));
    }
  }
}

// Sums of the rows that were scattered, and of those appended since; other slots' sums are left alone.
TEST_P(SparseParity, SumsOfValues) {
  for (const Heads& h : {Heads{6, 2, 64}, Heads{8, 1, 80}, Heads{2, 2, 272}}) {
    const std::vector<int> lengths = {1, 63, 1300, 20};
    Cache c = Make(h, lengths, {{1, 8, 8, 1}, {1, 8, 8, 1}, {1, 8, 8, 1}, {1, 8, 8}});
    for (int s = 0; s < 3; ++s) ops().SumValues(c.device, s);
    std::vector<Tensor> appended;
    for (int step = 0; step < 3; ++step) {
      Tensor k = Random(DType::kF32, {4, h.kv * h.dim}), v = Random(DType::kF32, {4, h.kv * h.dim});
      ops().AppendKv(k.Heads(h.kv).device, v.Heads(h.kv).device, c.device);
      appended.push_back(v);
    }
    for (int b = 0; b < 4; ++b) {
      const int s = slot(c, b);
      if (s == 3) continue;  // keeps none
      for (int g = 0; g < h.kv; ++g) {
        for (int d = 0; d < h.dim; ++d) {
          double sum = 0;
          for (int x = 0; x < lengths[s]; ++x) sum += reference::Get(c.v[s].host, g, x, d);
          for (const Tensor& v : appended) {
            const float x = static_cast<float>(reference::Get(v.Heads(h.kv).host, b, g, d));
            sum += kv_dtype() == DType::kBF16 ? Bf16ToFloat(RoundToBf16(x)) : x;
          }
          reference::Set(c.value_sums.host, sum, s, g, d);
        }
      }
    }
    ExpectSame(c.value_sums, SumTolerance(1303, 1));
  }
}

// Batch of N = N singles, bit for bit.
TEST_P(SparseParity, AnEntryDoesNotDependOnItsBatch) {
  const Heads h = {14, 2, 64};
  const std::vector<int> lengths = {1300, 64, 700, 2100, 333};
  for (const Method& method : Methods()) {
    std::vector<Hsa> settings(lengths.size(), For(method, 16, 20, 100));
    settings[2] = For(method, 3, 16, 600);
    Cache c = Make(h, lengths, settings);
    SumAll(c, 5);
    Tensor q = Random(DType::kF32, {5, h.q * h.dim});
    Tensor alone = Poisoned(DType::kF32, {5, h.q * h.dim}),
           together = Poisoned(DType::kF32, {5, h.q * h.dim});
    for (int b = 0; b < 5; ++b) {
      PagedKv part = c.device;
      part.slots = c.slots.Slice(0, b, b + 1).device;
      method.attend(q.Heads(h.q).Slice(0, b, b + 1).device, part, alone.Heads(h.q).Slice(0, b, b + 1).device);
    }
    method.attend(q.Heads(h.q).device, c.device, together.Heads(h.q).device);
    EXPECT_EQ(Download(together), Download(alone)) << method.name;
  }
}

}  // namespace
}  // namespace sluice
