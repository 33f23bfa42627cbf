// A KV head is a sequence of a batch to cuDNN: lengths and the places where heads begin are lists in device
// memory, so that one plan serves every prompt and every cache. The graph is softmax(q k^T / sqrt(d), causal)
// v with the log-sum-exp. It masks by the diagonal alone: no key past the end is at or before it. (A second
// mask for the ends, as cuDNN's own front end writes it, costs 8 %.)
#include "kernels/cuda/cudnn_attention.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <memory>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/mutex.h"
#include "common/base/status.h"
#include "kernels/cuda/cudnn_graph.h"
#include "kernels/cuda/cudnn_rows.h"
#include "kernels/cuda/round.h"
#include "kernels/views.h"

namespace sluice {
namespace {

constexpr size_t kOldestVersion = 91400;  // of those that the parity suite ran on
constexpr int64_t kBlockQueries = 16384;  // of one run: bounds what is rounded at a time
constexpr int64_t kLeastKeys = 131072;    // a plan has room for so many

// Names of what a run is given.
enum Uid : int64_t {
  kQ = 1,
  kK,
  kV,
  kOut,
  kStats,
  kQueries,
  kKeys,
  kQOffsets,
  kKOffsets,
  kVOffsets,
  kScale,
  kMasked
};

struct Shape {
  int64_t q_heads, kv_heads, d, max_keys;

  explicit Shape(const AttentionArgs& a)
      : q_heads(a.q.shape[1]), kv_heads(a.k.shape[0]), d(a.q.shape[2]), max_keys(kLeastKeys) {
    while (max_keys < a.k.shape[1]) max_keys *= 2;
  }
  auto key() const { return std::tuple(q_heads, kv_heads, d, max_keys); }
  int64_t group() const { return q_heads / kv_heads; }
  int64_t row() const { return q_heads * d; }
};

absl::StatusOr<CudnnPlan> MakePlan(const Cudnn* cudnn, cudnnHandle_t handle, const Shape& s) {
  constexpr cudnnDataType_t kBf16 = CUDNN_DATA_BFLOAT16, kF32 = CUDNN_DATA_FLOAT, kI32 = CUDNN_DATA_INT32,
                            kBool = CUDNN_DATA_BOOLEAN;
  CudnnGraph g(cudnn, handle);
  const int64_t heads = s.kv_heads, group = s.group(), n = kBlockQueries, len = s.max_keys, d = s.d;
  auto offsets = [&](Uid uid) { return g.List(uid, CUDNN_DATA_INT64, heads + 1); };
  const CudnnDescriptor queries = g.List(kQueries, kI32, heads), keys = g.List(kKeys, kI32, heads);
  const CudnnGraph::Shape q_shape = {heads, group, n, d}, q_stride = {n * s.row(), d, s.row(), 1};
  const CudnnDescriptor q_offsets = offsets(kQOffsets);
  const CudnnDescriptor q = g.Tensor(kQ, kBf16, q_shape, q_stride, q_offsets);
  const CudnnDescriptor out = g.Tensor(kOut, kBf16, q_shape, q_stride, q_offsets);
  const CudnnDescriptor k = g.Tensor(kK, kBf16, {heads, 1, d, len}, {len * d, len * d, 1, d},  // transposed
                                     offsets(kKOffsets));
  const CudnnDescriptor v =
      g.Tensor(kV, kBf16, {heads, 1, len, d}, {len * d, len * d, d, 1}, offsets(kVOffsets));
  const CudnnDescriptor stats = g.Tensor(kStats, kF32, {heads, group, n, 1}, {group * n, n, 1, 1});
  const CudnnDescriptor scale = g.Value(kScale, kF32), masked = g.Value(kMasked, kF32);

  auto all = [&](cudnnDataType_t type) { return g.Between(type, {heads, group, n, len}); };
  auto row = [&] { return g.Between(kF32, {heads, group, n, 1}); };
  CudnnDescriptor s0 = g.MatMul(q, k, {queries, keys, {}}, all(kF32));
  s0 = g.Pointwise(CUDNN_POINTWISE_MUL, kF32, s0, scale, all(kF32));
  // Query i sees keys up to i + keys - queries.
  CudnnDescriptor own = g.Index(2, s0, all(kI32));
  const CudnnDescriptor key = g.Index(3, s0, all(kI32));
  own = g.Pointwise(CUDNN_POINTWISE_ADD, kI32, own, keys, all(kI32));
  own = g.Pointwise(CUDNN_POINTWISE_SUB, kI32, own, queries, all(kI32));
  const CudnnDescriptor seen = g.Pointwise(CUDNN_POINTWISE_CMP_GE, kBool, own, key, all(kBool));
  s0 = g.Select(seen, s0, masked, all(kF32));
  // The softmax as cuDNN knows it again.
  const CudnnDescriptor top = g.Reduce(CUDNN_REDUCE_TENSOR_MAX, s0, row());
  CudnnDescriptor p = g.Pointwise(CUDNN_POINTWISE_SUB, kF32, s0, top, all(kF32));
  p = g.Pointwise(CUDNN_POINTWISE_EXP, kF32, p, {}, all(kF32));
  const CudnnDescriptor sum = g.Reduce(CUDNN_REDUCE_TENSOR_ADD, p, row());
  const CudnnDescriptor log = g.Pointwise(CUDNN_POINTWISE_LOG, kF32, sum, {}, row());
  g.Pointwise(CUDNN_POINTWISE_ADD, kF32, top, log, stats);
  p = g.Pointwise(CUDNN_POINTWISE_DIV, kF32, p, sum, all(kBf16));
  g.MatMul(p, v, {queries, {}, keys}, out);
  return g.Plan();
}

// Whether cuDNN may write the outputs itself.
bool WritesOut(const AttentionArgs& a) {
  return a.out.dtype == DType::kBF16 && a.out.stride[0] == a.out.shape[1] * a.out.shape[2] &&
         reinterpret_cast<uintptr_t>(a.out.data) % 16 == 0;
}

// A call's scratch memory.
struct Scratch {
  char *workspace, *q, *out;
  float* stats;
  CudnnLengths lengths;
  size_t bytes;

  Scratch(char* base, const Shape& s, const AttentionArgs& a, int64_t workspace_bytes) {
    size_t at = 0;
    auto take = [&](size_t size) {
      char* part = base + at;
      at += (size + 255) / 256 * 256;
      return part;
    };
    const size_t rows = std::min(a.q.shape[0], kBlockQueries) * s.row() * sizeof(uint16_t);
    workspace = take(workspace_bytes);
    q = take(rows);
    out = take(WritesOut(a) ? 0 : rows);
    stats = reinterpret_cast<float*>(take(s.q_heads * kBlockQueries * sizeof(float)));
    lengths.queries = reinterpret_cast<int32_t*>(take(s.kv_heads * sizeof(int32_t)));
    lengths.keys = reinterpret_cast<int32_t*>(take(s.kv_heads * sizeof(int32_t)));
    for (int64_t** list : {&lengths.q, &lengths.k, &lengths.v})
      *list = reinterpret_cast<int64_t*>(take((s.kv_heads + 1) * sizeof(int64_t)));
    bytes = at;
  }
};

class CudnnAttentionImpl final : public CudnnAttention {
 public:
  static std::unique_ptr<CudnnAttentionImpl> Create() {
    absl::StatusOr<std::shared_ptr<const Cudnn>> cudnn = Cudnn::Load();
    if (!cudnn.ok() || (*cudnn)->version() < kOldestVersion) return nullptr;
    cudnnHandle_t handle = nullptr;
    if ((*cudnn)->create(&handle) != CUDNN_STATUS_SUCCESS) return nullptr;
    return std::unique_ptr<CudnnAttentionImpl>(new CudnnAttentionImpl(*std::move(cudnn), handle));
  }

  bool Takes(const AttentionArgs& a) override {
    const int64_t d = a.q.shape[2];
    auto whole_rows = [d](const TensorView& x) {
      return x.stride[1] == d && x.stride[0] % d == 0 && reinterpret_cast<uintptr_t>(x.data) % 16 == 0;
    };
    return a.k.dtype == DType::kBF16 && a.sliding_window == 0 && d % 16 == 0 && whole_rows(a.k) &&
           whole_rows(a.v) && (a.out.dtype == DType::kF32 || WritesOut(a)) && PlanOf(Shape(a)) != nullptr;
  }

  size_t ScratchBytes(const AttentionArgs& a) const override {
    const Shape s(a);
    return Scratch(nullptr, s, a, PlanOf(s)->workspace_bytes).bytes;
  }

  absl::Status Run(const AttentionArgs& a, char* memory, cudaStream_t stream) override {
    const Shape s(a);
    const CudnnPlan& plan = *PlanOf(s);
    const int64_t n = a.q.shape[0], len = a.k.shape[1];
    const Scratch scratch(memory, s, a, plan.workspace_bytes);
    const bool writes_out = WritesOut(a);
    const int64_t window = a.lse.empty() ? 0 : a.lse.shape[1];
    for (int64_t begin = 0; begin < n; begin += kBlockQueries) {
      const int64_t rows = std::min(kBlockQueries, n - begin), keys = len - n + begin + rows;
      RoundToBf16Rows(Row<float>(a.q, begin), a.q.stride[0], rows, s.row(), scratch.q, s.row(), stream);
      WriteCudnnLengths(scratch.lengths, static_cast<int>(s.kv_heads), static_cast<int>(rows),
                        static_cast<int>(keys), s.group() * s.d, a.k.stride[0], a.v.stride[0], stream);
      void* out = writes_out ? Row<uint16_t>(a.out, begin) : static_cast<void*>(scratch.out);
      SLUICE_RETURN_IF_ERROR(Execute(plan, s, a.k.data, a.v.data, out, scratch, stream));
      if (!writes_out)
        WidenRows(scratch.out, rows, s.row(), Row<float>(a.out, begin), a.out.stride[0], stream);
      const int64_t first = std::max(begin, n - window), end = begin + rows;
      if (first < end)
        CopyLse(scratch.stats, kBlockQueries, static_cast<int>(s.q_heads), static_cast<int>(first - begin),
                static_cast<int>(end - first), a.lse.as<float>() + first - (n - window), a.lse.stride[0],
                stream);
    }
    return absl::OkStatus();
  }

 private:
  CudnnAttentionImpl(std::shared_ptr<const Cudnn> cudnn, cudnnHandle_t handle)
      : cudnn_(std::move(cudnn)), handle_(handle) {}

  // Null: cuDNN makes none for this shape. What it said once holds for the life of the process.
  const CudnnPlan* PlanOf(const Shape& s) const {
    MutexLock lock(&mu_);
    auto [it, fresh] = plans_.try_emplace(s.key());
    if (fresh) {
      absl::StatusOr<CudnnPlan> plan = MakePlan(cudnn_.get(), handle_, s);
      if (plan.ok()) it->second = std::make_unique<CudnnPlan>(*std::move(plan));
    }
    return it->second.get();
  }

  absl::Status Execute(const CudnnPlan& plan, const Shape& s, const void* k, const void* v, void* out,
                       const Scratch& scratch, cudaStream_t stream) {
    float scale = 1 / std::sqrt(static_cast<float>(s.d)), masked = -std::numeric_limits<float>::infinity();
    const std::pair<int64_t, const void*> given[] = {{kQ, scratch.q},
                                                     {kK, k},
                                                     {kV, v},
                                                     {kOut, out},
                                                     {kStats, scratch.stats},
                                                     {kQueries, scratch.lengths.queries},
                                                     {kKeys, scratch.lengths.keys},
                                                     {kQOffsets, scratch.lengths.q},
                                                     {kKOffsets, scratch.lengths.k},
                                                     {kVOffsets, scratch.lengths.v},
                                                     {kScale, &scale},
                                                     {kMasked, &masked}};
    MutexLock lock(&mu_);
    if (stream != stream_) {
      SLUICE_RETURN_IF_ERROR(CudnnStatus(*cudnn_, cudnn_->set_stream(handle_, stream), "cudnnSetStream"));
      stream_ = stream;
    }
    return CudnnStatus(*cudnn_, ExecuteCudnn(*cudnn_, handle_, plan, given, scratch.workspace),
                       "attention by cuDNN");
  }

  const std::shared_ptr<const Cudnn> cudnn_;
  const cudnnHandle_t handle_;  // never destroyed: it lives as long as the process
  mutable Mutex mu_;
  cudaStream_t stream_ ABSL_GUARDED_BY(mu_) = nullptr;  // the handle's
  mutable std::map<decltype(std::declval<Shape>().key()), std::unique_ptr<CudnnPlan>> plans_
      ABSL_GUARDED_BY(mu_);
};

}  // namespace

std::string CudnnAttention::Name() {
  const absl::StatusOr<std::shared_ptr<const Cudnn>> cudnn = Cudnn::Load();
  const size_t version = cudnn.ok() ? (*cudnn)->version() : 0;
  if (version == 0) return "no cuDNN";
  return absl::StrCat("cuDNN ", version / 10000, ".", version / 100 % 100, ".", version % 100,
                      version < kOldestVersion ? ", too old" : "");
}

CudnnAttention* CudnnAttention::OfDevice(int device) {
  static Mutex mu;
  static auto& all = *new std::map<int, std::unique_ptr<CudnnAttentionImpl>>();
  MutexLock lock(&mu);
  auto [it, fresh] = all.try_emplace(device);
  if (fresh) it->second = CudnnAttentionImpl::Create();
  return it->second.get();
}

}  // namespace sluice
