// Role: prefill attention by cuDNN, about half as fast again as our own kernel. Optional: where the library
// or a plan is missing, attention.cu does all. Why an interface: a build without cuDNN's headers has
// cudnn_attention_absent.cc in place of its one implementation. Threads: any.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <string>

#include "absl/status/status.h"
#include "kernels/backend.h"

namespace sluice {

class CudnnAttention {
 public:
  virtual ~CudnnAttention() = default;

  // The one of the thread's GPU, whose index this is. Null: no cuDNN of version 9.14 or newer. Lives as long
  // as the process.
  static CudnnAttention* OfDevice(int device);

  // "cuDNN 9.14.0"; ", too old" behind it where OfDevice does not take it; "no cuDNN".
  static std::string Name();

  // Whether Run takes it. A question of dtypes, head counts, head size and strides: never of how many queries
  // or cached rows there are, unless they pass 131072. The first of a kind makes a plan, which takes a
  // second.
  virtual bool Takes(const AttentionArgs& args) = 0;
  virtual size_t ScratchBytes(const AttentionArgs& args) const = 0;
  // scratch: ScratchBytes of device memory, 256-byte aligned, in order with the stream.
  virtual absl::Status Run(const AttentionArgs& args, char* scratch, cudaStream_t stream) = 0;
};

}  // namespace sluice
