#include "kernels/cuda/linear.h"

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/mat_vec.h"
#include "kernels/cuda/round.h"
#include "kernels/cuda/row_matrix.h"
#include "kernels/op_checks.h"
#include "kernels/views.h"

namespace sluice {
namespace {

// Values of x up to which our own kernel for few rows is faster: every multiprocessor reads all of x. From
// kManyFloats on, floats are rounded once before that.
constexpr int64_t kFewValues = 32768, kManyFloats = 28672;
constexpr size_t kMostPlans = 4096;  // prompts have any length: a map of all of them must end somewhere

absl::Status CublasStatus(cublasStatus_t status, absl::string_view call) {
  if (status == CUBLAS_STATUS_SUCCESS) return absl::OkStatus();
  const std::string message = absl::StrCat(call, ": cuBLAS status ", static_cast<int>(status));
  return status == CUBLAS_STATUS_ALLOC_FAILED ? absl::ResourceExhaustedError(message)
                                              : absl::InternalError(message);
}

}  // namespace

// In cuBLAS's column-major words: D [rows, n] = A^T B + C with A = w [k, rows], B = x [k, n].
struct Linear::Plan {
  explicit Plan(const CublasLt* lt) : lt(lt) {}
  ~Plan() {
    if (desc != nullptr) lt->desc_destroy(desc);
    for (cublasLtMatrixLayout_t layout : {a, b, d})
      if (layout != nullptr) lt->layout_destroy(layout);
  }
  const CublasLt* lt;
  cublasLtMatmulDesc_t desc = nullptr;
  cublasLtMatrixLayout_t a = nullptr, b = nullptr, d = nullptr;
  cublasLtMatmulAlgo_t algo;
};

Linear::Linear(std::shared_ptr<const CublasLt> cublas) : lt_(std::move(cublas)) {}

Linear::~Linear() {
  plans_.clear();
  if (handle_ != nullptr) lt_->destroy(handle_);
}

bool Linear::Takes(const GemmArgs& g) {
  return reinterpret_cast<uintptr_t>(g.out) % 16 == 0 && g.out_stride % 4 == 0 && g.rows % 8 == 0 &&
         reinterpret_cast<uintptr_t>(g.bias) % 16 == 0;
}

absl::Status Linear::MakePlan(const GemmArgs& g, std::unique_ptr<Plan>* out) {
  auto plan = std::make_unique<Plan>(lt_.get());
  auto check = [](cublasStatus_t s) { return CublasStatus(s, "cublasLt plan"); };
  SLUICE_RETURN_IF_ERROR(check(lt_->desc_create(&plan->desc, CUBLAS_COMPUTE_32F, CUDA_R_32F)));
  const cublasOperation_t transpose = CUBLAS_OP_T;
  SLUICE_RETURN_IF_ERROR(
      check(lt_->desc_set(plan->desc, CUBLASLT_MATMUL_DESC_TRANSA, &transpose, sizeof(transpose))));
  if (g.bias != nullptr) {
    const cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_BIAS;
    const cudaDataType_t type = CUDA_R_32F;
    SLUICE_RETURN_IF_ERROR(
        check(lt_->desc_set(plan->desc, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof(epilogue))));
    SLUICE_RETURN_IF_ERROR(
        check(lt_->desc_set(plan->desc, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, &type, sizeof(type))));
    SLUICE_RETURN_IF_ERROR(
        check(lt_->desc_set(plan->desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &g.bias, sizeof(g.bias))));
  }
  SLUICE_RETURN_IF_ERROR(check(lt_->layout_create(&plan->a, CUDA_R_16BF, g.k, g.rows, g.k)));
  SLUICE_RETURN_IF_ERROR(check(lt_->layout_create(&plan->b, CUDA_R_16BF, g.k, g.n, g.k)));
  SLUICE_RETURN_IF_ERROR(check(lt_->layout_create(&plan->d, CUDA_R_32F, g.rows, g.n, g.out_stride)));

  cublasLtMatmulPreference_t preference = nullptr;
  SLUICE_RETURN_IF_ERROR(check(lt_->preference_create(&preference)));
  const size_t workspace = kWorkspaceBytes;
  const uint32_t alignment = 16,
                 reductions = CUBLASLT_REDUCTION_SCHEME_NONE | CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
  cublasStatus_t status = lt_->preference_set(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                              &workspace, sizeof(workspace));
  for (auto attribute :
       {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES})
    if (status == CUBLAS_STATUS_SUCCESS)
      status = lt_->preference_set(preference, attribute, &alignment, sizeof(alignment));
  if (status == CUBLAS_STATUS_SUCCESS)  // parts of a sum over k meet in f32
    status = lt_->preference_set(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &reductions,
                                 sizeof(reductions));
  cublasLtMatmulHeuristicResult_t result;
  int found = 0;
  if (status == CUBLAS_STATUS_SUCCESS)
    status = lt_->heuristic(handle_, plan->desc, plan->a, plan->b, plan->d, plan->d, preference, 1, &result,
                            &found);
  lt_->preference_destroy(preference);
  SLUICE_RETURN_IF_ERROR(CublasStatus(status, "cublasLt heuristic"));
  if (found == 0)
    return absl::InternalError(absl::StrCat("cuBLASLt has no algorithm for ", g.rows, "x", g.k, ", n ", g.n));
  plan->algo = result.algo;
  *out = std::move(plan);
  return absl::OkStatus();
}

absl::Status Linear::Run(const GemmArgs& g, void* workspace, cudaStream_t stream) {
  if (handle_ == nullptr) SLUICE_RETURN_IF_ERROR(CublasStatus(lt_->create(&handle_), "cublasLtCreate"));
  const Key key = {g.n, g.rows, g.k, g.out_stride, g.bias != nullptr, g.accumulate};
  auto it = plans_.find(key);
  if (it == plans_.end()) {
    if (plans_.size() >= kMostPlans) plans_.clear();
    std::unique_ptr<Plan> plan;
    SLUICE_RETURN_IF_ERROR(MakePlan(g, &plan));
    it = plans_.emplace(key, std::move(plan)).first;
  }
  Plan& plan = *it->second;
  if (g.bias != nullptr)
    SLUICE_RETURN_IF_ERROR(
        CublasStatus(lt_->desc_set(plan.desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &g.bias, sizeof(g.bias)),
                     "cublasLt bias"));
  const float one = 1, beta = g.accumulate ? 1 : 0;
  return CublasStatus(lt_->matmul(handle_, plan.desc, &one, g.w, plan.a, g.x, plan.b, &beta, g.out, plan.d,
                                  g.out, plan.d, &plan.algo, workspace, kWorkspaceBytes, stream),
                      "cublasLtMatmul");
}

namespace {

bool TakesFewRows(const TensorView& x) {
  return x.shape[0] > 0 && x.shape[0] <= kMatVecRows && x.shape[0] * x.shape[1] <= kFewValues;
}

MatVecArgs CheckedArgs(const TensorView& x, const Matrix& w, const TensorView& bias, const TensorView& out) {
  const auto& rows = static_cast<const RowMatrix&>(w);
  const int64_t n = x.shape[0];
  const bool rounded = x.dtype == DType::kBF16;
  SLUICE_CHECK(Is(x, x.dtype, {n, w.cols()}) && IsProductInput(x.dtype));
  SLUICE_CHECK(!rounded || (w.cols() == rows.stride() && x.stride[0] == w.cols() &&
                            reinterpret_cast<uintptr_t>(x.data) % 16 == 0));
  SLUICE_CHECK(Is(out, DType::kF32, {n, w.rows()}));
  SLUICE_CHECK(bias.empty() || Is(bias, DType::kF32, {w.rows()}));
  MatVecArgs args;
  args.x = x.data;
  args.x_is_bf16 = rounded;
  args.x_stride = x.stride[0];
  args.n = static_cast<int>(n);
  args.w = rows.data();
  args.w_stride = rows.stride();
  args.rows = static_cast<int>(w.rows());
  args.cols = static_cast<int>(w.cols());
  args.bias = bias.as<float>();
  args.out = out.as<float>();
  args.out_stride = out.stride[0];
  return args;
}

}  // namespace

void CudaOps::MatMul(TensorView x, const Matrix& w, TensorView bias, bool accumulate, TensorView out) {
  const int64_t n = x.shape[0];
  MatVecArgs few = CheckedArgs(x, w, bias, out);
  few.accumulate = accumulate;
  if (n == 0) return;
  Begin();
  const auto& rows = static_cast<const RowMatrix&>(w);
  const GemmArgs gemm = {nullptr,    rows.data(),     n,
                         w.rows(),   rows.stride(),   bias.as<float>(),
                         accumulate, out.as<float>(), out.stride[0]};
  const bool rounded = x.dtype == DType::kBF16;
  if (TakesFewRows(x) || !Linear::Takes(gemm)) {
    if (!rounded && TakesFewRows(x) && n * w.cols() > kManyFloats) {
      char* memory = Reserve(n * rows.stride() * 2);
      if (memory == nullptr) return;
      RoundToBf16Rows(x.as<float>(), x.stride[0], n, w.cols(), memory, rows.stride(), stream_);
      few.x = memory;
      few.x_is_bf16 = true;
      few.x_stride = rows.stride();
    }
    MatVec(few, device_.n_sms, stream_);
    Launched("MatMul");
    return;
  }
  // Prompts of any length: blocks of rows bound the rounded activations.
  constexpr int64_t kBlockRows = 16384;
  char* memory =
      Reserve(Linear::kWorkspaceBytes + (rounded ? 0 : std::min(n, kBlockRows) * rows.stride() * 2));
  if (memory == nullptr) return;
  for (int64_t row = 0; row < n; row += kBlockRows) {
    GemmArgs block = gemm;
    block.n = std::min(kBlockRows, n - row);
    block.out = Row<float>(out, row);
    if (rounded) {
      block.x = Row<uint16_t>(x, row);
    } else {
      block.x = memory + Linear::kWorkspaceBytes;
      RoundToBf16Rows(Row<float>(x, row), x.stride[0], block.n, w.cols(), memory + Linear::kWorkspaceBytes,
                      rows.stride(), stream_);
    }
    if (absl::Status status = queue_->linear->Run(block, memory, stream_); !status.ok() && error_.ok())
      error_ = status;
  }
  Launched("MatMul");
}

void CudaOps::RotatedMatMul(TensorView x, const Matrix& w, TensorView bias, TensorView out, TensorView heads,
                            TensorView positions, TensorView cos_sin, TensorView shift) {
  CheckRope(heads, positions, cos_sin, shift);
  const int64_t head_dim = heads.shape[2];
  SLUICE_CHECK(heads.data == out.data && heads.stride[0] == out.stride[0] && heads.stride[1] == head_dim);
  if (!TakesFewRows(x) || head_dim % 16 != 0 || w.rows() % head_dim != 0) {
    Ops::RotatedMatMul(x, w, bias, out, heads, positions, cos_sin, shift);
    return;
  }
  MatVecArgs args = CheckedArgs(x, w, bias, out);
  args.head_dim = static_cast<int>(head_dim);
  args.turned = static_cast<int>(heads.shape[1] * head_dim);
  args.positions = positions.as<int32_t>();
  args.cos_sin = cos_sin.as<float>();
  args.cos_sin_stride = cos_sin.stride[0];
  args.context = cos_sin.shape[0];
  args.shift = shift.as<float>();
  args.shift_stride = shift.stride[0];
  Begin();
  MatVec(args, device_.n_sms, stream_);
  Launched("RotatedMatMul");
}

void CudaOps::GatedMatMul(TensorView x, const Matrix& w, TensorView gate_up, TensorView out) {
  if (!TakesFewRows(x) || out.dtype != DType::kBF16 || w.rows() % 16 != 0) {
    Ops::GatedMatMul(x, w, gate_up, out);
    return;
  }
  SLUICE_CHECK(Is(out, DType::kBF16, {x.shape[0], w.rows() / 2}));
  MatVecArgs args = CheckedArgs(x, w, TensorView(), gate_up);
  args.gated = out.data;
  args.gated_stride = out.stride[0];
  Begin();
  MatVec(args, device_.n_sms, stream_);
  Launched("GatedMatMul");
}

}  // namespace sluice
