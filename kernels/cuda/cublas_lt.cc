#include "kernels/cuda/cublas_lt.h"

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "kernels/cuda/runtime_library.h"

namespace sluice {

absl::StatusOr<std::shared_ptr<const CublasLt>> CublasLt::Load() {
  SLUICE_ASSIGN_OR_RETURN(
      RuntimeLibrary library,
      RuntimeLibrary::Open(absl::StrCat("libcublasLt.so.", CUBLAS_VER_MAJOR), ": install cuBLAS of CUDA 13"));
  auto lt = std::make_shared<CublasLt>();
  library.Bind(lt->create, "cublasLtCreate");
  library.Bind(lt->destroy, "cublasLtDestroy");
  library.Bind(lt->matmul, "cublasLtMatmul");
  library.Bind(lt->heuristic, "cublasLtMatmulAlgoGetHeuristic");
  library.Bind(lt->desc_create, "cublasLtMatmulDescCreate");
  library.Bind(lt->desc_destroy, "cublasLtMatmulDescDestroy");
  library.Bind(lt->desc_set, "cublasLtMatmulDescSetAttribute");
  library.Bind(lt->layout_create, "cublasLtMatrixLayoutCreate");
  library.Bind(lt->layout_destroy, "cublasLtMatrixLayoutDestroy");
  library.Bind(lt->preference_create, "cublasLtMatmulPreferenceCreate");
  library.Bind(lt->preference_destroy, "cublasLtMatmulPreferenceDestroy");
  library.Bind(lt->preference_set, "cublasLtMatmulPreferenceSetAttribute");
  SLUICE_RETURN_IF_ERROR(library.status());
  return std::shared_ptr<const CublasLt>(std::move(lt));
}

}  // namespace sluice
