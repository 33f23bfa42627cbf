// Role: builds a graph of cuDNN operations through the backend interface, and its plan. Why: that interface
// takes an attribute at a time, in which the meaning of a graph drowns. Threads: one at a time. Errors: the
// first is kept, and calls after it do nothing.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "kernels/cuda/cudnn.h"

namespace sluice {

// Shared owner of one backend descriptor.
class CudnnDescriptor {
 public:
  CudnnDescriptor() = default;
  CudnnDescriptor(const Cudnn* cudnn, cudnnBackendDescriptor_t descriptor)
      : descriptor_(descriptor, [cudnn](void* d) { cudnn->destroy_descriptor(d); }) {}
  cudnnBackendDescriptor_t get() const { return descriptor_.get(); }
  bool empty() const { return descriptor_ == nullptr; }

 private:
  std::shared_ptr<void> descriptor_;
};

struct CudnnPlan {
  CudnnDescriptor descriptor;
  int64_t workspace_bytes = 0;
};

class CudnnGraph {
 public:
  using Shape = std::array<int64_t, 4>;

  CudnnGraph(const Cudnn* cudnn, cudnnHandle_t handle) : cudnn_(cudnn), handle_(handle) {}

  // A tensor in device memory, 16-byte aligned. offsets: where each entry of its first dimension begins.
  CudnnDescriptor Tensor(int64_t uid, cudnnDataType_t type, Shape shape, Shape stride,
                         const CudnnDescriptor& offsets = {});
  // [n, 1, 1, 1].
  CudnnDescriptor List(int64_t uid, cudnnDataType_t type, int64_t n);
  // One value in host memory, read when the plan is queued.
  CudnnDescriptor Value(int64_t uid, cudnnDataType_t type);
  // Lives between two operations only.
  CudnnDescriptor Between(cudnnDataType_t type, Shape shape);

  // Rows, columns and inner length of a product where the first dimension's entries are shorter than its
  // shape.
  struct Lengths {
    CudnnDescriptor m, n, k;
  };
  // All return out. Sums and products are f32.
  CudnnDescriptor MatMul(const CudnnDescriptor& a, const CudnnDescriptor& b, const Lengths& lengths,
                         const CudnnDescriptor& out);
  // out = mode(x, b); b may be empty. math: the type it is computed in.
  CudnnDescriptor Pointwise(cudnnPointwiseMode_t mode, cudnnDataType_t math, const CudnnDescriptor& x,
                            const CudnnDescriptor& b, const CudnnDescriptor& out);
  // out = condition ? x : otherwise.
  CudnnDescriptor Select(const CudnnDescriptor& condition, const CudnnDescriptor& x,
                         const CudnnDescriptor& otherwise, const CudnnDescriptor& out);
  // out = the index along an axis of like's shape.
  CudnnDescriptor Index(int64_t axis, const CudnnDescriptor& like, const CudnnDescriptor& out);
  // Along the last axis.
  CudnnDescriptor Reduce(cudnnReduceTensorOp_t op, const CudnnDescriptor& x, const CudnnDescriptor& out);

  // The first of the plans that cuDNN proposes that it can also make.
  absl::StatusOr<CudnnPlan> Plan();

 private:
  CudnnDescriptor Make(cudnnBackendDescriptorType_t type);
  CudnnDescriptor MakeTensor(int64_t uid, cudnnDataType_t type, Shape shape, Shape stride, bool between,
                             bool value, const CudnnDescriptor& offsets);
  CudnnDescriptor MakePointwise(cudnnPointwiseMode_t mode, cudnnDataType_t math, int64_t axis);
  void Set(const CudnnDescriptor& d, cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
           int64_t n, const void* values);
  template <class T>
  void Set(const CudnnDescriptor& d, cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
           T value) {
    Set(d, name, type, 1, &value);
  }
  void Set(const CudnnDescriptor& d, cudnnBackendAttributeName_t name, const CudnnDescriptor& value);
  void Finalize(const CudnnDescriptor& d);
  void Get(const CudnnDescriptor& d, cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
           int64_t n, int64_t* found, void* values);
  void Add(const CudnnDescriptor& operation);
  void Keep(cudnnStatus_t status, absl::string_view call);

  const Cudnn* const cudnn_;
  const cudnnHandle_t handle_;
  absl::Status status_;
  std::vector<CudnnDescriptor> operations_;
  int64_t next_uid_ = int64_t{1} << 32;  // of tensors between operations
};

// Queues a plan on the handle's stream. given: a pointer for every tensor that is not between operations.
cudnnStatus_t ExecuteCudnn(const Cudnn& cudnn, cudnnHandle_t handle, const CudnnPlan& plan,
                           absl::Span<const std::pair<int64_t, const void*>> given, void* workspace);

// Codes of cuDNN as a Status that names the call.
absl::Status CudnnStatus(const Cudnn& cudnn, cudnnStatus_t status, absl::string_view call);

}  // namespace sluice
