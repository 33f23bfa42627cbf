#include <vector>

#include "common/base/status.h"
#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/sample_row.cuh"
#include "kernels/cuda/shared_memory.cuh"
#include "kernels/sampling.h"
#include "kernels/views.h"

namespace sluice {
namespace {

using sampling::kBlocks;
using sampling::kMostLogits;
using sampling::kThreads;
using sampling::RowSampler;
using sampling::Rule;
using sampling::Shared;
using sampling::SliceOf;

// grid (kBlocks, rules), dynamic shared memory for a block's slice if `holds`.
__global__ __cluster_dims__(kBlocks, 1, 1)
    __launch_bounds__(kThreads) void SampleRows(float* logits, int64_t stride, int n, const Rule* rules,
                                                const SeenToken* seen, const int32_t* forbidden, bool holds,
                                                int32_t* out) {
  extern __shared__ __align__(16) float held[];
  __shared__ Shared shared;
  const Rule rule = rules[blockIdx.y];
  RowSampler row(logits + rule.row * stride, n, rule, shared);
  row.Adjust(seen, forbidden);
  if (holds) row.Hold(held);
  const int32_t best = row.Best();
  if (best >= 0 && rule.temperature > 0) {
    row.Draw(&out[rule.row]);
  } else if (blockIdx.x == 0 && threadIdx.x == 0) {
    out[rule.row] = best;
  }
  row.Leave();
}

}  // namespace

void CudaOps::Sample(TensorView logits, absl::Span<const SampleRule> rules, TensorView out) {
  const int64_t rows = logits.shape[0], n = logits.shape[1];
  SLUICE_CHECK(Is(logits, DType::kF32, {rows, n}) && Is(out, DType::kI32, {rows}) && n <= kMostLogits);
  if (rules.empty()) return;
  std::vector<Rule> own;
  std::vector<SeenToken> seen;
  std::vector<int32_t> forbidden;
  for (const SampleRule& rule : rules) {
    SLUICE_CHECK(rule.row >= 0 && rule.row < rows);
    Rule r = {};
    r.uniform = rule.uniform;
    r.least = LeastWeight(rule);
    r.row = rule.row;
    r.top_k = rule.top_k;
    r.temperature = rule.temperature;
    r.top_p = rule.top_p;
    r.repetition_penalty = rule.repetition_penalty;
    r.presence_penalty = rule.presence_penalty;
    r.frequency_penalty = rule.frequency_penalty;
    r.seen_begin = static_cast<int>(seen.size());
    r.forbidden_begin = static_cast<int>(forbidden.size());
    seen.insert(seen.end(), rule.seen.begin(), rule.seen.end());
    forbidden.insert(forbidden.end(), rule.forbidden.begin(), rule.forbidden.end());
    r.seen_end = static_cast<int>(seen.size());
    r.forbidden_end = static_cast<int>(forbidden.size());
    own.push_back(r);
  }
  Begin();
  const size_t rule_bytes = own.size() * sizeof(Rule), seen_bytes = seen.size() * sizeof(SeenToken),
               forbidden_bytes = forbidden.size() * sizeof(int32_t);
  char* memory = Reserve(rule_bytes + seen_bytes + forbidden_bytes);
  if (memory == nullptr) return;
  char* const device_seen = memory + rule_bytes;
  char* const device_forbidden = device_seen + seen_bytes;
  Keep(queue_->ring.CopyIn(own.data(), memory, rule_bytes, stream_), "Sample");
  Keep(queue_->ring.CopyIn(seen.data(), device_seen, seen_bytes, stream_), "Sample");
  Keep(queue_->ring.CopyIn(forbidden.data(), device_forbidden, forbidden_bytes, stream_), "Sample");
  Keep(AllowSharedMemory(SampleRows), "Sample");
  const size_t slice_bytes = SliceOf(static_cast<int>(n)) * sizeof(float);
  const bool holds = slice_bytes + sizeof(Shared) <= kMostSharedBytes;
  SampleRows<<<dim3(kBlocks, static_cast<unsigned>(rules.size())), kThreads, holds ? slice_bytes : 0,
               stream_>>>(logits.as<float>(), logits.stride[0], static_cast<int>(n),
                          reinterpret_cast<const Rule*>(memory),
                          reinterpret_cast<const SeenToken*>(device_seen),
                          reinterpret_cast<const int32_t*>(device_forbidden), holds, out.as<int32_t>());
  Launched("Sample");
}

}  // namespace sluice
