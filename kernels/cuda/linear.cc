#include "kernels/cuda/linear.h"

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/mat_vec.h"
#include "kernels/cuda/round.h"
#include "kernels/cuda/row_matrix.h"
#include "kernels/views.h"

namespace sluice {
namespace {

// Values of x up to which our own kernel for few rows is faster: every multiprocessor reads all of x.
constexpr int64_t kFewValues = 28672;
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

void CudaOps::MatMul(TensorView x, const Matrix& w, TensorView bias, bool accumulate, TensorView out) {
  const auto& rows = static_cast<const RowMatrix&>(w);
  const int64_t n = x.shape[0];
  const bool rounded = x.dtype == DType::kBF16;
  SLUICE_CHECK(Is(x, x.dtype, {n, w.cols()}) && IsProductInput(x.dtype));
  SLUICE_CHECK(!rounded || (w.cols() == rows.stride() && x.stride[0] == w.cols() &&
                            reinterpret_cast<uintptr_t>(x.data) % 16 == 0));
  SLUICE_CHECK(Is(out, DType::kF32, {n, w.rows()}));
  SLUICE_CHECK(bias.empty() || Is(bias, DType::kF32, {w.rows()}));
  if (n == 0) return;
  Begin();
  const GemmArgs gemm = {nullptr,    rows.data(),     n,
                         w.rows(),   rows.stride(),   bias.as<float>(),
                         accumulate, out.as<float>(), out.stride[0]};
  if ((n <= kMatVecRows && n * w.cols() <= kFewValues) || !Linear::Takes(gemm)) {
    MatVec({x.data, rounded, x.stride[0], static_cast<int>(n), rows.data(), rows.stride(),
            static_cast<int>(w.rows()), static_cast<int>(w.cols()), bias.as<float>(), accumulate,
            out.as<float>(), out.stride[0]},
           device_.n_sms, stream_);
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

}  // namespace sluice
