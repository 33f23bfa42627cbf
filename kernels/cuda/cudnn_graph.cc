#include "kernels/cuda/cudnn_graph.h"

#include "absl/strings/str_cat.h"

namespace sluice {

absl::Status CudnnStatus(const Cudnn& cudnn, cudnnStatus_t status, absl::string_view call) {
  if (status == CUDNN_STATUS_SUCCESS) return absl::OkStatus();
  const std::string message =
      absl::StrCat(call, ": cuDNN ", cudnn.version(), ": ", cudnn.error_string(status));
  const bool memory = status == CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED ||
                      status == CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED;
  return memory ? absl::ResourceExhaustedError(message) : absl::InternalError(message);
}

void CudnnGraph::Keep(cudnnStatus_t status, absl::string_view call) {
  if (status_.ok()) status_ = CudnnStatus(*cudnn_, status, call);
}

CudnnDescriptor CudnnGraph::Make(cudnnBackendDescriptorType_t type) {
  cudnnBackendDescriptor_t descriptor = nullptr;
  if (status_.ok()) Keep(cudnn_->create_descriptor(type, &descriptor), "descriptor");
  return status_.ok() ? CudnnDescriptor(cudnn_, descriptor) : CudnnDescriptor();
}

void CudnnGraph::Set(const CudnnDescriptor& d, cudnnBackendAttributeName_t name,
                     cudnnBackendAttributeType_t type, int64_t n, const void* values) {
  if (status_.ok())
    Keep(cudnn_->set(d.get(), name, type, n, values), absl::StrCat("attribute ", static_cast<int>(name)));
}

void CudnnGraph::Set(const CudnnDescriptor& d, cudnnBackendAttributeName_t name,
                     const CudnnDescriptor& value) {
  Set(d, name, CUDNN_TYPE_BACKEND_DESCRIPTOR, value.get());
}

void CudnnGraph::Finalize(const CudnnDescriptor& d) {
  if (status_.ok()) Keep(cudnn_->finalize(d.get()), "finalize");
}

void CudnnGraph::Get(const CudnnDescriptor& d, cudnnBackendAttributeName_t name,
                     cudnnBackendAttributeType_t type, int64_t n, int64_t* found, void* values) {
  if (status_.ok())
    Keep(cudnn_->get(d.get(), name, type, n, found, values), absl::StrCat("read ", static_cast<int>(name)));
}

void CudnnGraph::Add(const CudnnDescriptor& operation) {
  Finalize(operation);
  operations_.push_back(operation);
}

CudnnDescriptor CudnnGraph::MakeTensor(int64_t uid, cudnnDataType_t type, Shape shape, Shape stride,
                                       bool between, bool value, const CudnnDescriptor& offsets) {
  CudnnDescriptor tensor = Make(CUDNN_BACKEND_TENSOR_DESCRIPTOR);
  Set(tensor, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, uid);
  Set(tensor, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, type);
  Set(tensor, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 4, shape.data());
  Set(tensor, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, 4, stride.data());
  Set(tensor, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, int64_t{16});
  Set(tensor, CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, between);
  Set(tensor, CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, value);
  if (!offsets.empty()) Set(tensor, CUDNN_ATTR_TENSOR_RAGGED_OFFSET_DESC, offsets);
  Finalize(tensor);
  return tensor;
}

CudnnDescriptor CudnnGraph::Tensor(int64_t uid, cudnnDataType_t type, Shape shape, Shape stride,
                                   const CudnnDescriptor& offsets) {
  return MakeTensor(uid, type, shape, stride, false, false, offsets);
}

CudnnDescriptor CudnnGraph::List(int64_t uid, cudnnDataType_t type, int64_t n) {
  return MakeTensor(uid, type, {n, 1, 1, 1}, {1, 1, 1, 1}, false, false, {});
}

CudnnDescriptor CudnnGraph::Value(int64_t uid, cudnnDataType_t type) {
  return MakeTensor(uid, type, {1, 1, 1, 1}, {1, 1, 1, 1}, false, true, {});
}

CudnnDescriptor CudnnGraph::Between(cudnnDataType_t type, Shape shape) {
  const Shape stride = {shape[1] * shape[2] * shape[3], shape[2] * shape[3], shape[3], 1};
  return MakeTensor(next_uid_++, type, shape, stride, true, false, {});
}

CudnnDescriptor CudnnGraph::MatMul(const CudnnDescriptor& a, const CudnnDescriptor& b, const Lengths& lengths,
                                   const CudnnDescriptor& out) {
  CudnnDescriptor kind = Make(CUDNN_BACKEND_MATMUL_DESCRIPTOR);
  Set(kind, CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, CUDNN_DATA_FLOAT);
  Finalize(kind);
  CudnnDescriptor operation = Make(CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR);
  Set(operation, CUDNN_ATTR_OPERATION_MATMUL_ADESC, a);
  Set(operation, CUDNN_ATTR_OPERATION_MATMUL_BDESC, b);
  Set(operation, CUDNN_ATTR_OPERATION_MATMUL_CDESC, out);
  Set(operation, CUDNN_ATTR_OPERATION_MATMUL_DESC, kind);
  if (!lengths.m.empty()) Set(operation, CUDNN_ATTR_OPERATION_MATMUL_GEMM_M_OVERRIDE_DESC, lengths.m);
  if (!lengths.n.empty()) Set(operation, CUDNN_ATTR_OPERATION_MATMUL_GEMM_N_OVERRIDE_DESC, lengths.n);
  if (!lengths.k.empty()) Set(operation, CUDNN_ATTR_OPERATION_MATMUL_GEMM_K_OVERRIDE_DESC, lengths.k);
  Add(operation);
  return out;
}

CudnnDescriptor CudnnGraph::MakePointwise(cudnnPointwiseMode_t mode, cudnnDataType_t math, int64_t axis) {
  CudnnDescriptor kind = Make(CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
  Set(kind, CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, mode);
  Set(kind, CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, math);
  if (mode == CUDNN_POINTWISE_GEN_INDEX) Set(kind, CUDNN_ATTR_POINTWISE_AXIS, CUDNN_TYPE_INT64, axis);
  Finalize(kind);
  CudnnDescriptor operation = Make(CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
  Set(operation, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, kind);
  return operation;
}

CudnnDescriptor CudnnGraph::Pointwise(cudnnPointwiseMode_t mode, cudnnDataType_t math,
                                      const CudnnDescriptor& x, const CudnnDescriptor& b,
                                      const CudnnDescriptor& out) {
  CudnnDescriptor operation = MakePointwise(mode, math, 0);
  Set(operation, CUDNN_ATTR_OPERATION_POINTWISE_XDESC, x);
  if (!b.empty()) Set(operation, CUDNN_ATTR_OPERATION_POINTWISE_BDESC, b);
  Set(operation, CUDNN_ATTR_OPERATION_POINTWISE_YDESC, out);
  Add(operation);
  return out;
}

CudnnDescriptor CudnnGraph::Select(const CudnnDescriptor& condition, const CudnnDescriptor& x,
                                   const CudnnDescriptor& otherwise, const CudnnDescriptor& out) {
  CudnnDescriptor operation = MakePointwise(CUDNN_POINTWISE_BINARY_SELECT, CUDNN_DATA_FLOAT, 0);
  Set(operation, CUDNN_ATTR_OPERATION_POINTWISE_XDESC, x);
  Set(operation, CUDNN_ATTR_OPERATION_POINTWISE_BDESC, otherwise);
  Set(operation, CUDNN_ATTR_OPERATION_POINTWISE_TDESC, condition);
  Set(operation, CUDNN_ATTR_OPERATION_POINTWISE_YDESC, out);
  Add(operation);
  return out;
}

CudnnDescriptor CudnnGraph::Index(int64_t axis, const CudnnDescriptor& like, const CudnnDescriptor& out) {
  CudnnDescriptor operation = MakePointwise(CUDNN_POINTWISE_GEN_INDEX, CUDNN_DATA_FLOAT, axis);
  Set(operation, CUDNN_ATTR_OPERATION_POINTWISE_XDESC, like);
  Set(operation, CUDNN_ATTR_OPERATION_POINTWISE_YDESC, out);
  Add(operation);
  return out;
}

CudnnDescriptor CudnnGraph::Reduce(cudnnReduceTensorOp_t op, const CudnnDescriptor& x,
                                   const CudnnDescriptor& out) {
  CudnnDescriptor kind = Make(CUDNN_BACKEND_REDUCTION_DESCRIPTOR);
  Set(kind, CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, op);
  Set(kind, CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, CUDNN_DATA_FLOAT);
  Finalize(kind);
  CudnnDescriptor operation = Make(CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR);
  Set(operation, CUDNN_ATTR_OPERATION_REDUCTION_XDESC, x);
  Set(operation, CUDNN_ATTR_OPERATION_REDUCTION_YDESC, out);
  Set(operation, CUDNN_ATTR_OPERATION_REDUCTION_DESC, kind);
  Add(operation);
  return out;
}

absl::StatusOr<CudnnPlan> CudnnGraph::Plan() {
  CudnnDescriptor graph = Make(CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
  std::vector<cudnnBackendDescriptor_t> raw;
  for (const CudnnDescriptor& operation : operations_) raw.push_back(operation.get());
  Set(graph, CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, static_cast<int64_t>(raw.size()),
      raw.data());
  Set(graph, CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, handle_);
  Finalize(graph);

  CudnnDescriptor heuristics = Make(CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
  Set(heuristics, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, graph);
  Set(heuristics, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, CUDNN_HEUR_MODE_A);
  Finalize(heuristics);
  int64_t n = 0;
  Get(heuristics, CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR, 0, &n, nullptr);
  std::vector<CudnnDescriptor> configs;
  raw.clear();
  for (int64_t i = 0; i < n; ++i) {
    configs.push_back(Make(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR));
    raw.push_back(configs.back().get());
  }
  Get(heuristics, CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR, n, &n, raw.data());
  if (!status_.ok()) return status_;

  absl::Status why = absl::UnimplementedError("cuDNN proposes no engine for this graph");
  for (int64_t i = 0; i < n; ++i) {
    CudnnPlan plan;
    plan.descriptor = Make(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
    Set(plan.descriptor, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, configs[i]);
    Finalize(plan.descriptor);
    int64_t one = 0;
    Get(plan.descriptor, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64, 1, &one,
        &plan.workspace_bytes);
    if (status_.ok()) return plan;
    why = status_;
    status_ = absl::OkStatus();
  }
  return why;
}

cudnnStatus_t ExecuteCudnn(const Cudnn& cudnn, cudnnHandle_t handle, const CudnnPlan& plan,
                           absl::Span<const std::pair<int64_t, const void*>> given, void* workspace) {
  std::vector<int64_t> uids;
  std::vector<const void*> pointers;
  for (const auto& [uid, pointer] : given) {
    uids.push_back(uid);
    pointers.push_back(pointer);
  }
  const int64_t n = static_cast<int64_t>(given.size());
  cudnnBackendDescriptor_t raw = nullptr;
  cudnnStatus_t status = cudnn.create_descriptor(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, &raw);
  if (status != CUDNN_STATUS_SUCCESS) return status;
  const CudnnDescriptor pack(&cudnn, raw);
  auto set = [&](cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, int64_t count,
                 const void* values) {
    if (status == CUDNN_STATUS_SUCCESS) status = cudnn.set(raw, name, type, count, values);
  };
  set(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, n, uids.data());
  set(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, n, pointers.data());
  set(CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1, &workspace);
  if (status == CUDNN_STATUS_SUCCESS) status = cudnn.finalize(raw);
  return status == CUDNN_STATUS_SUCCESS ? cudnn.execute(handle, plan.descriptor.get(), raw) : status;
}

}  // namespace sluice
