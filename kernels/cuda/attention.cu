// Blockwise causal attention with online softmax (arXiv 2205.14135, 2407.08608). Key blocks start at
// multiples of 128 rows from row 0 and every query row has sums of its own, so a query's result does not
// depend on how queries were cut into tiles.
#include <algorithm>
#include <vector>

#include "kernels/cuda/attention_args.cuh"
#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/cudnn_attention.h"
#include "kernels/cuda/shared_memory.cuh"
#include "kernels/cuda/tensor_core.cuh"
#include "kernels/cuda/warpgroup.cuh"
#include "kernels/op_checks.h"

namespace sluice {
namespace {

constexpr int kGroups = 2;               // warpgroups of a block, 64 rows each
constexpr int kTileRows = kGroups * 64;  // query x head-of-the-group rows of a block
constexpr int kKeys = 128;               // keys of a step
constexpr int kStages = 2;
constexpr int kThreads = kGroups * kWarpgroup;
constexpr float kLog2E = 1.4426950408889634f;

// Shared memory: Q, then stages of K, then stages of V; each in tiles of 64 columns.
template <int kDim>
struct Layout {
  static constexpr uint32_t kQTile = kTileRows * 128, kKeyTile = kKeys * 128;
  static constexpr int kTiles = kDim / kTileColumns;
  static constexpr uint32_t kQ = 0, kK = kTiles * kQTile, kV = kK + kStages * kTiles * kKeyTile,
                            kBytes = kV + kStages * kTiles * kKeyTile;
  static constexpr uint32_t kStage = kTiles * kKeyTile;
};

// K or V rows [row0, row0 + 128) of one head; rows from `end` are zeros.
template <int kDim>
__device__ void LoadRows(uint32_t shared, const Bf16* rows, int64_t stride, int row0, int end) {
  constexpr int kPieces = kDim / 8;
#pragma unroll
  for (int i = threadIdx.x; i < kKeys * kPieces; i += kThreads) {
    const int row = i / kPieces, piece = i % kPieces;
    const bool valid = row0 + row < end;
    CopyAsync16(SwizzledPiece(shared + piece / 8 * Layout<kDim>::kKeyTile, row, piece % 8),
                rows + (valid ? row0 + row : 0) * stride + piece * 8, valid);
  }
}

// First row whose position is past `oldest`; positions ascend.
__device__ int FirstSeen(const int32_t* positions, int n, int oldest) {
  int low = 0, high = n;
  while (low < high) {
    const int mid = (low + high) / 2;
    if (positions[mid] > oldest) {
      high = mid;
    } else {
      low = mid + 1;
    }
  }
  return low;
}

// grid: for every sequence (tiles x KV heads), late tiles first: they see the most keys. A tile is 128 rows:
// queries x heads of the group, so that the group reads K and V once. A warpgroup owns 64 rows, a lane two of
// them. While a step's weights multiply its values, the next step's scores are computed and its softmax runs.
template <int kDim>
__global__ __launch_bounds__(kThreads, 1) void AttendTiles(const __grid_constant__ AttentionBatch batch) {
  using L = Layout<kDim>;
  constexpr int kScores = kKeys / 2, kOut = kDim / 2;  // registers of a [64, n] fragment
  extern __shared__ __align__(1024) char memory[];
  const int which = batch.SequenceOf(blockIdx.x);
  const AttentionSequence& a = batch.sequences[which];
  const int per_tile = kTileRows / a.group, tiles = static_cast<int>(CeilDiv(a.n, per_tile));
  const int block = blockIdx.x - batch.first_block[which];
  const int head = block % a.kv_heads, tile = tiles - 1 - block / a.kv_heads;
  const int query0 = tile * per_tile, n_queries = min(per_tile, a.n - query0), rows = n_queries * a.group;
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp, g = lane / 4, t = lane % 4;
  const uint32_t shared = (SharedAddress(memory) + 1023) / 1024 * 1024;

  const Bf16* k = static_cast<const Bf16*>(a.k) + head * a.k_head;
  const Bf16* v = static_cast<const Bf16*>(a.v) + head * a.v_head;
  const int32_t* positions = a.positions == nullptr ? nullptr : a.positions + head * a.positions_head;
  const int first_own = a.OwnRow(query0), end = a.OwnRow(query0 + n_queries - 1) + 1;
  const int first_key =
      positions == nullptr
          ? 0
          : FirstSeen(positions, end, positions[first_own] - a.sliding_window) / kKeys * kKeys;
  const int steps = static_cast<int>(CeilDiv(end - first_key, kKeys));

  auto load_keys = [&](int step) {
    if (step < steps)
      LoadRows<kDim>(shared + L::kK + step % kStages * L::kStage, k, a.k_row, first_key + step * kKeys, end);
  };
  auto load_values = [&](int step) {
    if (step < steps)
      LoadRows<kDim>(shared + L::kV + step % kStages * L::kStage, v, a.v_row, first_key + step * kKeys, end);
  };
  load_keys(0);
  CommitAsync();
  load_keys(1);
  load_values(0);
  CommitAsync();
  for (int i = threadIdx.x; i < kTileRows * (kDim / 8); i += kThreads) {
    const int row = i / (kDim / 8), piece = i % (kDim / 8);
    uint4 x = make_uint4(0, 0, 0, 0);
    if (row < rows) {
      const float* q =
          a.q + (query0 + row / a.group) * a.q_row + (head * a.group + row % a.group) * kDim + piece * 8;
      x = make_uint4(PackBf16(q[0], q[1]), PackBf16(q[2], q[3]), PackBf16(q[4], q[5]), PackBf16(q[6], q[7]));
    }
    StoreShared16(SwizzledPiece(shared + L::kQ + piece / 8 * L::kQTile, row, piece % 8), x);
  }

  // A lane's rows: 16 * warp + g and + 8. own: the last key each sees; oldest: the position it no longer
  // sees. Rows past the end do as the last one does, and are not stored.
  int own[2], oldest[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    own[half] = a.OwnRow(query0 + min(16 * warp + 8 * half + g, rows - 1) / a.group);
    oldest[half] = positions == nullptr ? 0 : positions[own[half]] - a.sliding_window;
  }

  const float scale = kLog2E / sqrtf(static_cast<float>(kDim));
  float o[kOut] = {}, top[2] = {kMinusInfinity, kMinusInfinity}, sum[2] = {0, 0};
  float s[kScores];
  uint32_t p[kKeys / 16][4];

  const uint32_t q_rows = shared + L::kQ + warp / 4 * (64 * 128);
  auto start_scores = [&](int step) {
    const uint32_t keys = shared + L::kK + step % kStages * L::kStage;
    WarpgroupFence();
#pragma unroll
    for (int i = 0; i < kDim / 16; ++i)
      MultiplyRows(s, Operand(q_rows + i / 4 * L::kQTile + i % 4 * 32, 0),
                   Operand(keys + i / 4 * L::kKeyTile + i % 4 * 32, 0), i > 0);
    WarpgroupCommit();
  };
  auto start_values = [&](int step) {
    const uint32_t values = shared + L::kV + step % kStages * L::kStage;
    WarpgroupFence();
#pragma unroll
    for (int i = 0; i < kKeys / 16; ++i) MultiplyValues(o, p[i], Operand(values + i * 16 * 128, L::kKeyTile));
    WarpgroupCommit();
  };
  // Scores of a step -> weights in s; what older sums shrink by.
  auto softmax = [&](int step, float(&shrink)[2]) {
    const int key0 = first_key + step * kKeys;
    if (positions != nullptr || key0 + kKeys > first_own + 1) {
#pragma unroll
      for (int j = 0; j < kKeys / 8; ++j) {
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          const int key = key0 + 8 * j + 2 * t + c;
          const int position = positions != nullptr && key < end ? positions[key] : 0;
#pragma unroll
          for (int half = 0; half < 2; ++half)
            if (key > own[half] || (positions != nullptr && position <= oldest[half]))
              s[4 * j + 2 * half + c] = kMinusInfinity;
        }
      }
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float now = s[2 * half];
#pragma unroll
      for (int j = 0; j < kKeys / 8; ++j)
        now = fmaxf(now, fmaxf(s[4 * j + 2 * half], s[4 * j + 2 * half + 1]));
      now = fmaxf(now, __shfl_xor_sync(kAllLanes, now, 1));
      now = fmaxf(now, __shfl_xor_sync(kAllLanes, now, 2));
      // The scaled maximum is rounded once and kept: where nothing greater was seen, sums shrink by
      // exactly 1.
      now = fmaxf(top[half], __fmul_rn(now, scale));
      const float base = now == kMinusInfinity ? 0 : now;  // nothing seen so far
      shrink[half] = Exp2(top[half] - base);
      top[half] = now;
      float added = 0;
#pragma unroll
      for (int j = 0; j < kKeys / 8; ++j) {
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          float& x = s[4 * j + 2 * half + c];
          x = Exp2(x * scale - base);
          added += x;
        }
      }
      sum[half] = sum[half] * shrink[half] + added;
    }
  };
  auto pack_weights = [&] {
#pragma unroll
    for (int i = 0; i < kKeys / 16; ++i)
#pragma unroll
      for (int j = 0; j < 4; ++j) p[i][j] = PackBf16(s[8 * i + 2 * j], s[8 * i + 2 * j + 1]);
  };

  float shrink[2];
  WaitAsync<1>();  // the first keys
  PublishShared();
  __syncthreads();
  start_scores(0);
  WarpgroupWait<0>();
  Pin(s);
  softmax(0, shrink);
  pack_weights();
  auto arrive = [&] {
    WaitAsync<0>();
    PublishShared();
    __syncthreads();
  };
  for (int step = 0; step + 1 < steps; ++step) {
    arrive();  // keys of step + 1 and values of step are here; all are done with those before
    load_keys(step + 2);
    load_values(step + 1);
    CommitAsync();
    // One warpgroup after the other: the first's softmax runs while the second's products do.
    if (warp / 4 > 0) NamedBarrierSync(1, kThreads);
    start_scores(step + 1);
    start_values(step);
    if (warp / 4 == 0) NamedBarrierArrive(1, kThreads);
    WarpgroupWait<1>();
    Pin(s);
    softmax(step + 1, shrink);
    WarpgroupWait<0>();
    Pin(o);
#pragma unroll
    for (int i = 0; i < kOut; ++i) o[i] *= shrink[i / 2 % 2];
    pack_weights();
  }
  arrive();
  start_values(steps - 1);
  WarpgroupWait<0>();
  Pin(o);

#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float total = sum[half];
    total += __shfl_xor_sync(kAllLanes, total, 1);
    total += __shfl_xor_sync(kAllLanes, total, 2);
    const int row = 16 * warp + 8 * half + g;
    if (row >= rows) continue;
    const int query = query0 + row / a.group, q_head = head * a.group + row % a.group;
#pragma unroll
    for (int j = 0; j < kDim / 8; ++j)
      a.Put(query, q_head * kDim + 8 * j + 2 * t, o[4 * j + 2 * half] / total,
            o[4 * j + 2 * half + 1] / total);
    const int column = query - (a.n - a.window);
    if (t == 0 && column >= 0 && a.window > 0)
      a.lse[q_head * a.lse_head + column] = top[half] / kLog2E + logf(total);
  }
}

template <int kDim>
void Start(const AttentionBatch& batch, cudaStream_t stream) {
  constexpr int kBytes = Layout<kDim>::kBytes + 1024;  // the tiles' alignment
  AllowSharedMemory(AttendTiles<kDim>);
  AttendTiles<kDim><<<batch.first_block[batch.n], kThreads, kBytes, stream>>>(batch);
}

bool OnTensorCores(const AttentionArgs& a) {
  const int64_t d = a.q.shape[2];
  return a.k.dtype == DType::kBF16 && (d == 64 || d == 128);
}

}  // namespace

void CudaOps::Attention(absl::Span<const AttentionArgs> sequences) {
  Begin();
  CudnnAttention* cudnn = CudnnAttention::OfDevice(device_.index);
  std::vector<const AttentionArgs*> own;  // what our kernels do
  for (const AttentionArgs& args : sequences) {
    CheckAttention(args);
    if (args.q.shape[0] == 0) continue;
    if (cudnn == nullptr || !cudnn->Takes(args)) {
      own.push_back(&args);
      continue;
    }
    char* scratch = Reserve(cudnn->ScratchBytes(args));
    if (scratch == nullptr) return;
    if (absl::Status status = cudnn->Run(args, scratch, stream_); !status.ok() && error_.ok())
      error_ = status;
  }

  AttentionBatch batch;
  for (int64_t d : {64, 128}) {
    batch.n = batch.first_block[0] = 0;
    auto flush = [&] {
      if (batch.n > 0) d == 64 ? Start<64>(batch, stream_) : Start<128>(batch, stream_);
      batch.n = 0;
    };
    for (const AttentionArgs* args : own) {
      if (!OnTensorCores(*args) || args->q.shape[2] != d) continue;
      const AttentionSequence a(*args);
      batch.sequences[batch.n] = a;
      batch.first_block[batch.n + 1] =
          batch.first_block[batch.n] + static_cast<int>(CeilDiv(a.n, kTileRows / a.group)) * a.kv_heads;
      if (++batch.n == kSequencesOfALaunch) flush();
    }
    flush();
  }
  for (const AttentionArgs* args : own)
    if (!OnTensorCores(*args)) PlainAttention(AttentionSequence(*args), args->k.dtype, stream_);
  Launched("Attention");
}

}  // namespace sluice
