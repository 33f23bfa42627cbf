// Role: the functions of cuBLASLt that we call, from the shared library opened at run time. Why not linked: a
// binary with this backend must start where the half gigabyte of the library is
// absent. Threads: immutable once loaded.
#pragma once

#include <cublasLt.h>

#include <memory>

#include "absl/status/statusor.h"

namespace sluice {

struct CublasLt {
  decltype(&cublasLtCreate) create;
  decltype(&cublasLtDestroy) destroy;
  decltype(&cublasLtMatmul) matmul;
  decltype(&cublasLtMatmulAlgoGetHeuristic) heuristic;
  decltype(&cublasLtMatmulDescCreate) desc_create;
  decltype(&cublasLtMatmulDescDestroy) desc_destroy;
  decltype(&cublasLtMatmulDescSetAttribute) desc_set;
  decltype(&cublasLtMatrixLayoutCreate) layout_create;
  decltype(&cublasLtMatrixLayoutDestroy) layout_destroy;
  decltype(&cublasLtMatmulPreferenceCreate) preference_create;
  decltype(&cublasLtMatmulPreferenceDestroy) preference_destroy;
  decltype(&cublasLtMatmulPreferenceSetAttribute) preference_set;

  // FailedPrecondition names the library and where it was looked for.
  static absl::StatusOr<std::shared_ptr<const CublasLt>> Load();
};

}  // namespace sluice
