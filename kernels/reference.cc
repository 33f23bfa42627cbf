#include "kernels/reference.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

#include "common/base/status.h"
#include "kernels/cpu/bf16.h"

namespace sluice::reference {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

int64_t Offset(const TensorView& view, int64_t i, int64_t j, int64_t k) {
  return i * view.stride[0] + (view.rank > 1 ? j * view.stride[1] : 0) +
         (view.rank > 2 ? k * view.stride[2] : 0);
}

int32_t& Int(const TensorView& view, int64_t i, int64_t j = 0) {
  return view.as<int32_t>()[Offset(view, i, j, 0)];
}

bool Sees(const TensorView& positions, int sliding_window, int64_t head, int64_t query_row, int64_t key_row) {
  if (key_row > query_row) return false;
  return sliding_window == 0 ||
         Int(positions, head, key_row) > Int(positions, head, query_row) - sliding_window;
}

double Dot(const TensorView& q, int64_t i, int64_t h, const TensorView& k, int64_t g, int64_t row) {
  double sum = 0;
  for (int64_t d = 0; d < q.shape[2]; ++d) sum += Get(q, i, h, d) * Get(k, g, row, d);
  return sum;
}

std::vector<double> Softmax(const std::vector<double>& x) {
  const double max = *std::max_element(x.begin(), x.end());
  std::vector<double> p;
  double sum = 0;
  for (double value : x) sum += p.emplace_back(std::exp(value - max));
  for (double& value : p) value /= sum;
  return p;
}

// The k best, ascending; the lowest of equals.
RowChoice ChooseBest(const std::vector<double>& score, int k) {
  std::vector<int> order(score.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return score[a] > score[b]; });
  k = std::min(k, static_cast<int>(order.size()));
  RowChoice choice = {{order.begin(), order.begin() + k}, kInfinity};
  if (k < static_cast<int>(order.size())) {
    const double last = score[order[k - 1]], next = score[order[k]];
    // Equal scores tie exactly where they come from equal rows.
    if (last != next) choice.margin = (last - next) / std::max(1.0, std::fabs(next));
  }
  std::sort(choice.rows.begin(), choice.rows.end());
  return choice;
}

}  // namespace

double Get(const TensorView& view, int64_t i, int64_t j, int64_t k) {
  const int64_t at = Offset(view, i, j, k);
  return view.dtype == DType::kBF16 ? Bf16ToFloat(view.as<uint16_t>()[at]) : view.as<float>()[at];
}

void Set(const TensorView& view, double value, int64_t i, int64_t j, int64_t k) {
  const int64_t at = Offset(view, i, j, k);
  if (view.dtype == DType::kBF16) {
    view.as<uint16_t>()[at] = RoundToBf16(static_cast<float>(value));
  } else {
    view.as<float>()[at] = static_cast<float>(value);
  }
}

void RmsNorm(TensorView x, TensorView weight, float eps, TensorView out) {
  const int64_t heads = x.rank == 3 ? x.shape[1] : 1, c = x.shape[x.rank - 1];
  auto get = [&](int64_t i, int64_t h, int64_t j) { return x.rank == 3 ? Get(x, i, h, j) : Get(x, i, j); };
  for (int64_t i = 0; i < x.shape[0]; ++i) {
    for (int64_t h = 0; h < heads; ++h) {
      double squares = 0;
      for (int64_t j = 0; j < c; ++j) squares += get(i, h, j) * get(i, h, j);
      for (int64_t j = 0; j < c; ++j) {
        const double y = get(i, h, j) / std::sqrt(squares / c + eps) * Get(weight, j);
        x.rank == 3 ? Set(out, y, i, h, j) : Set(out, y, i, j);
      }
    }
  }
}

void MatMul(TensorView x, TensorView w, TensorView bias, bool accumulate, TensorView out) {
  for (int64_t i = 0; i < out.shape[0]; ++i) {
    for (int64_t r = 0; r < out.shape[1]; ++r) {
      double sum = (bias.empty() ? 0 : Get(bias, r)) + (accumulate ? Get(out, i, r) : 0);
      for (int64_t c = 0; c < x.shape[1]; ++c) sum += Get(x, i, c) * Get(w, r, c);
      Set(out, sum, i, r);
    }
  }
}

void Rope(TensorView x, TensorView positions, TensorView cos_sin, TensorView shift) {
  const int64_t half = x.shape[2] / 2;
  for (int64_t i = 0; i < x.shape[0]; ++i) {
    for (int64_t h = 0; h < x.shape[1]; ++h) {
      for (int64_t j = 0; j < half; ++j) {
        const double c = Get(cos_sin, Int(positions, i), j), s = Get(cos_sin, Int(positions, i), half + j);
        const double a = Get(x, i, h, j), b = Get(x, i, h, half + j);
        const bool shifted = !shift.empty();
        Set(x, a * c - b * s - (shifted ? Get(shift, h, j) : 0), i, h, j);
        Set(x, b * c + a * s - (shifted ? Get(shift, h, half + j) : 0), i, h, half + j);
      }
    }
  }
}

void SwiGlu(TensorView gate_up, TensorView out) {
  for (int64_t i = 0; i < out.shape[0]; ++i) {
    for (int64_t j = 0; j < out.shape[1]; ++j) {
      const double gate = Get(gate_up, i, j);
      Set(out, gate / (1 + std::exp(-gate)) * Get(gate_up, i, out.shape[1] + j), i, j);
    }
  }
}

void StoreKv(TensorView k, TensorView v, TensorView k_out, TensorView v_out) {
  for (int64_t i = 0; i < k.shape[0]; ++i) {
    for (int64_t h = 0; h < k.shape[1]; ++h) {
      for (int64_t d = 0; d < k.shape[2]; ++d) {
        Set(k_out, Get(k, i, h, d), h, i, d);
        Set(v_out, Get(v, i, h, d), h, i, d);
      }
    }
  }
}

void Attention(const AttentionArgs& a) {
  const int64_t n = a.q.shape[0], heads = a.q.shape[1], d = a.q.shape[2], len = a.k.shape[1];
  const int64_t group = heads / a.k.shape[0], window = a.lse.empty() ? 0 : a.lse.shape[1];
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t h = 0; h < heads; ++h) {
      const int64_t g = h / group, own = len - n + i;
      std::vector<double> p(own + 1, -kInfinity);
      for (int64_t j = 0; j <= own; ++j)
        if (Sees(a.positions, a.sliding_window, g, own, j)) p[j] = Dot(a.q, i, h, a.k, g, j) / std::sqrt(d);
      const double max = *std::max_element(p.begin(), p.end());
      double sum = 0;
      for (double& x : p) sum += x = std::exp(x - max);
      if (i >= n - window) Set(a.lse, max + std::log(sum), h, i - (n - window));
      for (int64_t c = 0; c < d; ++c) {
        double y = 0;
        for (int64_t j = 0; j <= own; ++j) y += p[j] * Get(a.v, g, j, c);
        Set(a.out, y / sum, i, h, c);
      }
    }
  }
}

void WindowScores(const WindowScoresArgs& a) {
  const int64_t window = a.q.shape[0], heads = a.q.shape[1], d = a.q.shape[2];
  const int64_t group = heads / a.k.shape[0], first = a.k.shape[1] - window;
  const int64_t share = heads / a.scores.shape[0];
  for (int64_t s = 0; s < a.scores.shape[0]; ++s) {
    const int64_t g = s * share / group;
    for (int64_t j = 0; j < a.scores.shape[1]; ++j) {
      double sum = a.accumulate ? Get(a.scores, s, j) : 0;
      for (int64_t i = 0; i < window; ++i) {
        for (int64_t h = s * share; h < (s + 1) * share; ++h) {
          if (!Sees(a.positions, a.sliding_window, g, first + i, j)) continue;
          const double dot = Dot(a.q, i, h, a.k, g, j);
          const double weight = a.raw ? dot : std::exp(dot / std::sqrt(d) - Get(a.lse, h, i));
          sum += a.round_weights ? Bf16ToFloat(RoundToBf16(static_cast<float>(weight))) : weight;
        }
      }
      Set(a.scores, sum, s, j);
    }
  }
}

void Pool(TensorView scores, const Pooling& pooling, TensorView out) {
  const int64_t n = scores.shape[1], half = pooling.kernel / 2;
  for (int64_t h = 0; h < scores.shape[0]; ++h) {
    for (int64_t i = 0; i < n; ++i) {
      double best = -kInfinity, sum = 0;
      if (pooling.kind == Pooling::kChunk) {
        const int64_t begin = i / pooling.kernel * pooling.kernel, end = std::min(begin + pooling.kernel, n);
        for (int64_t j = begin; j < end; ++j) sum += Get(scores, h, j);
        Set(out, sum / static_cast<double>(end - begin), h, i);
        continue;
      }
      for (int64_t j = 0; j < n; ++j) {
        const double s = Get(scores, h, j), distance = static_cast<double>(std::abs(i - j));
        if (pooling.kind == Pooling::kFading) {
          const double reach = j <= i ? pooling.after : pooling.before;
          if (distance <= std::floor(32 * reach)) best = std::max(best, s * std::exp(-distance / reach));
        } else if (distance <= half) {
          best = std::max(best, s);
          sum += s;
        }
      }
      Set(out, pooling.kind == Pooling::kAvg ? sum / pooling.kernel : best, h, i);
    }
  }
}

// Word by word from the end, by doubling: no product of the two sizes that the ops multiply.
uint64_t Checksum(TensorView words) {
  uint64_t tail = 0,
           sum = 0;  // of the words from i on: their plain sum, and the sum of (2 (j - i) + 1) word j
  for (int64_t i = words.shape[0] - 1; i >= 0; --i) {
    const uint64_t word = words.as<uint32_t>()[i];
    sum += word + tail + tail;
    tail += word;
  }
  return sum;
}

void SumHeads(TensorView scores, TensorView out) {
  for (int64_t j = 0; j < scores.shape[1]; ++j) {
    double sum = 0;
    for (int64_t h = 0; h < scores.shape[0]; ++h) sum += Get(scores, h, j);
    Set(out, sum, j);
  }
}

void ArgMax(TensorView x, TensorView out) {
  for (int64_t i = 0; i < x.shape[0]; ++i) {
    int best = -1;
    bool finite = true;
    for (int j = 0; j < x.shape[1]; ++j) {
      const double value = Get(x, i, j);
      finite &= !std::isnan(value) && value != std::numeric_limits<double>::infinity();
      if (value != -std::numeric_limits<double>::infinity() && (best < 0 || value > Get(x, i, best)))
        best = j;
    }
    Int(out, i) = finite ? best : -1;
  }
}

namespace {

int SampleOne(std::vector<double> logits, const SampleRule& rule) {
  const int n = static_cast<int>(logits.size());
  for (double logit : logits)
    if (std::isnan(logit) || logit == kInfinity) return -1;
  for (const SeenToken& seen : rule.seen) {
    if (seen.id < 0 || seen.id >= n) continue;
    // Steps and roundings of f32 logits.
    double& logit = logits[seen.id];
    const double repeated = logit > 0 ? logit / rule.repetition_penalty : logit * rule.repetition_penalty;
    logit = static_cast<float>(std::min<double>(repeated, std::numeric_limits<float>::max()));
    if (seen.count == 0) continue;
    const float times = rule.frequency_penalty * static_cast<float>(seen.count);
    const float penalty = rule.presence_penalty + times;
    logit = static_cast<float>(logit) - penalty;
  }
  for (int id : rule.forbidden)
    if (id >= 0 && id < n) logits[id] = -kInfinity;

  std::vector<int> ids(n);  // best first
  std::iota(ids.begin(), ids.end(), 0);
  std::stable_sort(ids.begin(), ids.end(), [&](int a, int b) { return logits[a] > logits[b]; });
  if (n == 0 || logits[ids[0]] == -kInfinity) return -1;
  if (rule.temperature <= 0) return ids[0];
  const double bits = std::pow(2.0, SampleRule::kWeightBits);
  auto weight = [&](int id) {
    const double share = std::exp((logits[id] - logits[ids[0]]) * (1.0 / rule.temperature));
    return static_cast<uint64_t>(share * bits);
  };
  std::vector<int> kept;
  for (int id : ids)
    if (weight(id) > 0 && static_cast<double>(weight(id)) >= rule.min_p * bits) kept.push_back(id);
  if (rule.top_k > 0 && static_cast<size_t>(rule.top_k) < kept.size()) kept.resize(rule.top_k);
  uint64_t total = 0, sum = 0;
  for (int id : kept) total += weight(id);
  if (rule.top_p < 1) {
    const double wanted = rule.top_p * static_cast<double>(total);
    size_t take = 0;
    while (take == 0 || static_cast<double>(sum) < wanted) sum += weight(kept[take++]);
    kept.resize(take);
    total = sum;
  }
  std::sort(kept.begin(), kept.end());
  const double target = rule.uniform * static_cast<double>(total);
  sum = 0;
  for (int id : kept)
    if (static_cast<double>(sum += weight(id)) > target) return id;
  return kept.back();
}

}  // namespace

void Sample(TensorView logits, absl::Span<const SampleRule> rules, TensorView out) {
  for (const SampleRule& rule : rules) {
    std::vector<double> row;
    for (int64_t i = 0; i < logits.shape[1]; ++i) row.push_back(Get(logits, rule.row, i));
    Int(out, rule.row) = SampleOne(std::move(row), rule);
  }
}

void SelectTop(TensorView scores, int k, int tail, TensorView rows) {
  const int n = static_cast<int>(scores.shape[1]);
  for (int64_t h = 0; h < scores.shape[0]; ++h) {
    std::vector<int> order(n);
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(),
                     [&](int a, int b) { return Get(scores, h, a) > Get(scores, h, b); });
    std::sort(order.begin(), order.begin() + k);
    for (int i = 0; i < k; ++i) Int(rows, h, i) = order[i];
    for (int i = 0; i < tail; ++i) Int(rows, h, k + i) = n + i;
  }
}

void GatherRows(TensorView x, TensorView rows, TensorView out) {
  for (int64_t i = 0; i < rows.shape[0]; ++i)
    for (int64_t c = 0; c < x.shape[1]; ++c) Int(out, i, c) = Int(x, Int(rows, i), c);
}

void GatherKv(TensorView k, TensorView v, TensorView positions, TensorView rows, absl::Span<const int> kept,
              TensorView k_out, TensorView v_out, TensorView positions_out) {
  int64_t at = 0;
  for (int64_t h = 0; h < k.shape[0]; ++h) {
    for (int i = 0; i < kept[h]; ++i, ++at) {
      const int row = Int(rows, h, i);
      for (int64_t d = 0; d < k.shape[2]; ++d) {
        Set(k_out, Get(k, h, row, d), at, d);
        Set(v_out, Get(v, h, row, d), at, d);
      }
      Int(positions_out, at) = Int(positions, h, row);
    }
  }
}

void DecodeAttention(TensorView q, TensorView k, TensorView v, const std::vector<int>& rows, TensorView out) {
  const int64_t d = q.shape[1];
  for (int64_t g = 0; g < q.shape[0]; ++g) {
    std::vector<double> p;
    for (int row : rows) {
      double dot = 0;
      for (int64_t c = 0; c < d; ++c) dot += Get(q, g, c) * Get(k, row, c);
      p.push_back(dot / std::sqrt(d));
    }
    const double max = *std::max_element(p.begin(), p.end());
    double sum = 0;
    for (double& x : p) sum += x = std::exp(x - max);
    for (int64_t c = 0; c < d; ++c) {
      double y = 0;
      for (size_t i = 0; i < rows.size(); ++i) y += p[i] * Get(v, rows[i], c);
      Set(out, y / sum, g, c);
    }
  }
}

HsaChoice ChooseHsaRows(TensorView q, TensorView k, int page, int channels, int tokens) {
  const int group = static_cast<int>(q.shape[0]), d = static_cast<int>(q.shape[1]);
  const int len = static_cast<int>(k.shape[0]), n_pages = (len + page - 1) / page;
  HsaChoice choice;
  choice.margin = kInfinity;

  std::vector<double> magnitude(d), sign(d);
  for (int c = 0; c < d; ++c) {
    double sum = 0;
    for (int g = 0; g < group; ++g) {
      magnitude[c] += std::fabs(Get(q, g, c));
      sum += Get(q, g, c);
    }
    sign[c] = sum > 0 ? 1 : -1;
  }
  std::vector<int> order(d);
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return magnitude[a] > magnitude[b]; });
  if (channels < d) choice.margin = magnitude[order[channels - 1]] / magnitude[order[channels]] - 1;
  order.resize(channels);
  choice.channels = order;

  std::vector<double> weight(len);  // mean over the group of the softmax over tokens
  for (int g = 0; g < group; ++g) {
    double kept = 0, all = 0;
    for (int c = 0; c < d; ++c) all += std::fabs(Get(q, g, c));
    for (int c : order) kept += std::fabs(Get(q, g, c));
    std::vector<double> score(n_pages);
    for (int j = 0; j < n_pages; ++j) {
      for (int c : order) {
        double bound = -kInfinity;
        for (int x = j * page; x < std::min((j + 1) * page, len); ++x)
          bound = std::max(bound, sign[c] * Get(k, x, c));
        score[j] += sign[c] * Get(q, g, c) * bound;
      }
    }
    const double tau = std::sqrt(d * kept / all), max = *std::max_element(score.begin(), score.end());
    double sum = 0;
    for (int x = 0; x < len; ++x) sum += std::exp((score[x / page] - max) / tau);
    for (int x = 0; x < len; ++x) weight[x] += std::exp((score[x / page] - max) / tau) / sum / group;
    choice.page_scores.push_back(score);
  }

  std::vector<int> rows(len);
  std::iota(rows.begin(), rows.end(), 0);
  std::stable_sort(rows.begin(), rows.end(), [&](int a, int b) { return weight[a] > weight[b]; });
  tokens = std::min(tokens, len);
  for (int x = tokens; tokens < len && x < len; ++x) {
    if (rows[x] / page == rows[tokens - 1] / page) continue;  // a page's rows tie exactly, by definition
    choice.margin = std::min(choice.margin, weight[rows[tokens - 1]] / weight[rows[x]] - 1);
    break;
  }
  choice.rows.assign(rows.begin(), rows.begin() + tokens);
  std::sort(choice.rows.begin(), choice.rows.end());
  return choice;
}

RowChoice ChooseQuestRows(TensorView q, TensorView k, int page, int tokens) {
  const int len = static_cast<int>(k.shape[0]), n_pages = (len + page - 1) / page;
  std::vector<double> score(n_pages);
  for (int j = 0; j < n_pages; ++j) {
    for (int64_t c = 0; c < q.shape[1]; ++c) {
      double low = kInfinity, high = -kInfinity;
      for (int x = j * page; x < std::min((j + 1) * page, len); ++x) {
        low = std::min(low, Get(k, x, c));
        high = std::max(high, Get(k, x, c));
      }
      score[j] += std::max(Get(q, 0, c) * low, Get(q, 0, c) * high);
    }
  }
  const RowChoice pages = ChooseBest(score, std::max(1, tokens / page));
  RowChoice choice = {{}, pages.margin};
  for (int j : pages.rows)
    for (int x = j * page; x < std::min((j + 1) * page, len); ++x) choice.rows.push_back(x);
  return choice;
}

RowChoice ChooseSparqRows(TensorView q, TensorView k, int channels, int tokens, std::vector<double>* shares) {
  const int group = static_cast<int>(q.shape[0]), d = static_cast<int>(q.shape[1]);
  const int len = static_cast<int>(k.shape[0]);
  std::vector<double> magnitude(d), sum(len);
  for (int c = 0; c < d; ++c)
    for (int g = 0; g < group; ++g) magnitude[c] += std::fabs(Get(q, g, c));
  const RowChoice chosen_channels = ChooseBest(magnitude, channels);
  std::vector<std::vector<double>> weights;
  for (int g = 0; g < group; ++g) {
    double kept = 0, all = 0;
    for (int c = 0; c < d; ++c) all += std::fabs(Get(q, g, c));
    for (int c : chosen_channels.rows) kept += std::fabs(Get(q, g, c));
    std::vector<double> score(len);
    for (int x = 0; x < len; ++x) {
      for (int c : chosen_channels.rows) score[x] += Get(q, g, c) * Get(k, x, c);
      score[x] /= std::sqrt(d * kept / all);
      sum[x] += score[x];
    }
    weights.push_back(Softmax(score));
  }
  tokens = std::min(tokens, len);
  for (int x = len - tokens / 4 - 1; x < len; ++x) sum[std::max(0, x)] = kInfinity;
  RowChoice choice = ChooseBest(sum, tokens);
  choice.margin = std::min(choice.margin, chosen_channels.margin);
  shares->assign(group, 0);
  for (int g = 0; g < group; ++g)
    for (int x : choice.rows) (*shares)[g] += weights[g][x];
  return choice;
}

RowChoice ChooseTopRows(TensorView q, TensorView k, int tokens) {
  const int64_t d = q.shape[1], len = k.shape[0];
  std::vector<double> mean(len);
  for (int64_t g = 0; g < q.shape[0]; ++g) {
    std::vector<double> score(len);
    for (int64_t x = 0; x < len; ++x) {
      for (int64_t c = 0; c < d; ++c) score[x] += Get(q, g, c) * Get(k, x, c);
      score[x] /= std::sqrt(d);
    }
    const std::vector<double> weights = Softmax(score);
    for (int64_t x = 0; x < len; ++x) mean[x] += weights[x] / q.shape[0];
  }
  for (double& x : mean) x = std::log(x);
  return ChooseBest(mean, tokens);
}

void AddMeanValue(TensorView v, const std::vector<double>& shares, TensorView out) {
  for (int64_t c = 0; c < v.shape[1]; ++c) {
    double mean = 0;
    for (int64_t x = 0; x < v.shape[0]; ++x) mean += Get(v, x, c) / v.shape[0];
    for (size_t g = 0; g < shares.size(); ++g)
      Set(out, shares[g] * Get(out, g, c) + (1 - shares[g]) * mean, g, c);
  }
}

}  // namespace sluice::reference
