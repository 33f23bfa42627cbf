#include "kernels/cuda/cublas_lt.h"

#include <dlfcn.h>

#include <string>

#include "absl/strings/str_cat.h"

namespace sluice {

absl::StatusOr<std::shared_ptr<const CublasLt>> CublasLt::Load() {
  const std::string name = absl::StrCat("libcublasLt.so.", CUBLAS_VER_MAJOR);
  void* library = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr)
    library = dlopen(absl::StrCat(SLUICE_CUDA_LIBRARY_DIR "/", name).c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr)
    return absl::FailedPreconditionError(
        absl::StrCat(name, " is neither in the library path nor in " SLUICE_CUDA_LIBRARY_DIR
                           ": install cuBLAS of CUDA 13"));

  auto lt = std::make_shared<CublasLt>();  // the library stays open for the life of the process
  std::string missing;
  auto bind = [&](auto& function, const char* symbol) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(library, symbol));
    if (function == nullptr) missing = symbol;
  };
  bind(lt->create, "cublasLtCreate");
  bind(lt->destroy, "cublasLtDestroy");
  bind(lt->matmul, "cublasLtMatmul");
  bind(lt->heuristic, "cublasLtMatmulAlgoGetHeuristic");
  bind(lt->desc_create, "cublasLtMatmulDescCreate");
  bind(lt->desc_destroy, "cublasLtMatmulDescDestroy");
  bind(lt->desc_set, "cublasLtMatmulDescSetAttribute");
  bind(lt->layout_create, "cublasLtMatrixLayoutCreate");
  bind(lt->layout_destroy, "cublasLtMatrixLayoutDestroy");
  bind(lt->preference_create, "cublasLtMatmulPreferenceCreate");
  bind(lt->preference_destroy, "cublasLtMatmulPreferenceDestroy");
  bind(lt->preference_set, "cublasLtMatmulPreferenceSetAttribute");
  if (!missing.empty()) return absl::FailedPreconditionError(absl::StrCat(name, " has no ", missing));
  return std::shared_ptr<const CublasLt>(std::move(lt));
}

}  // namespace sluice
