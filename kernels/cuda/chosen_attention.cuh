// Role: the sparse decode attentions that score everything first and then read the best: what their kernels
// share. The first writes scores of pages or rows (quest_attention.cu, sparq_attention.cu,
// top_k_attention.cu), a second chooses by them and a third attends (chosen_attention.cu). Threads: passed to
// kernels by value.
#pragma once

#include <cstdint>

#include "kernels/cuda/device.cuh"
#include "kernels/cuda/paged_cache.cuh"

namespace sluice {

enum class ChosenMethod {
  kQuest,          // a query head's pages by its scores of them
  kSparq,          // a group's rows by the sum of its heads' scores, the latest ones in any case
  kSparqWithMean,  // and the mean of all values for the rest of the softmax over scores
  kTopK,           // a query head's rows by its scores
  kTopKOfGroup,    // a group's rows by the mean of its heads' softmaxes over scores
};

struct ChosenArgs {
  PagedCache cache;
  ChosenMethod method;
  DType dtype;     // of the cache
  const float* q;  // [batch, heads * group, d]
  int64_t q_stride;
  void* out;  // as q; f32, or bf16
  int64_t out_stride;
  bool out_bf16;
  int batch, group;
  int64_t room;  // rows that the tables have room for
  float* scores =
      nullptr;  // [batch, heads, planes, room], in base 2: a plane of each head, and kSparq* their sum
  int32_t* rows = nullptr;  // [batch, heads * choices, room]: the chosen
  float2* stats = nullptr;  // [batch, heads, group]: of each head's scores the largest, and the sum of
                            // 2^(score - largest); kSparqWithMean

  __host__ __device__ bool of_a_head() const {
    return method == ChosenMethod::kQuest || method == ChosenMethod::kTopK;
  }
  __host__ __device__ bool is_sparq() const {
    return method == ChosenMethod::kSparq || method == ChosenMethod::kSparqWithMean;
  }
  __host__ __device__ int planes() const { return group + is_sparq(); }
  __host__ __device__ int choices() const { return of_a_head() ? group : 1; }  // of a (sequence, KV head)
  __device__ float* Scores(int entry, int head, int plane) const {
    return scores + ((int64_t{entry} * cache.heads + head) * planes() + plane) * room;
  }
  __device__ float2* Stats(int entry, int head) const {
    return stats + (int64_t{entry} * cache.heads + head) * group;
  }
  // Blocks for every (sequence, KV head) of a kernel of scores that goes through runs of 64.
  int ScoreBlocks(int n_sms) const {
    const int64_t spare = CeilDiv(4 * n_sms, int64_t{batch} * cache.heads), runs = CeilDiv(room, 64);
    return static_cast<int>(spare < runs ? spare : runs);
  }
};

}  // namespace sluice
