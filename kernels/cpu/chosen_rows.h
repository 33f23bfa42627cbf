// Role: what decode attentions share that read few rows of a cache: the best of a list of scores, the
// channels that a query group looks at, and attention over rows given by their numbers. Threads: pure
// functions of their arguments; one task each.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/backend.h"
#include "kernels/cpu/isa/kernels.h"
#include "kernels/cpu/paged_rows.h"

namespace sluice {

// Cuts arrays out of one piece of memory; without memory it only counts the bytes.
class Cutter {
 public:
  explicit Cutter(char* memory) : memory_(memory) {}
  template <class T>
  T* Take(int64_t n) {
    T* array = memory_ == nullptr ? nullptr : reinterpret_cast<T*>(memory_ + bytes_);
    bytes_ += (n * sizeof(T) + 63) / 64 * 64;
    return array;
  }
  size_t bytes() const { return bytes_; }

 private:
  char* const memory_;
  size_t bytes_ = 0;
};

// The k best of n scores (no NaN), ascending, to chosen [k]; the lowest of equals. keys: scratch [n].
void ChooseBest(const float* scores, int64_t n, int64_t k, uint32_t* keys, int32_t* chosen);

// The k1 channels of the largest sum over the group of |q|, ascending; the lowest wins a tie. q [group, d];
// sums: scratch [d]; channels [d], the first k1 of which are the answer.
void ChooseChannels(const float* q, int group, int d, int k1, float* sums, int32_t* channels);

// What scores of one query in some of its channels are multiplied by, for a softmax about as sharp as that of
// whole scores: 1 / sqrt(d * sum of |q| there / sum of |q|) (SparQ, arXiv 2312.04985). q [d].
float InverseTemperature(const float* q, int d, const int32_t* channels, int k1);

// Attention of a query group over n rows of a (slot, KV head), in this order. q, out [group, d].
struct AttendScratch {
  float* scaled_q;  // [group, d]
  void* part;       // of DecodeParts, one

  AttendScratch(Cutter& cutter, int group, int d);
};
void AttendChosen(const DecodeKernels& kernels, const float* q, int group, const PagedKv& cache, int slot,
                  int kv_head, const int32_t* chosen, int n, const AttendScratch& scratch, float* out);

}  // namespace sluice
