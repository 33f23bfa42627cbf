// Role: the functions of cuDNN that we call, from the shared library opened at run time, and owners of its
// descriptors. Why not linked: it is optional. Where it is absent, our own kernels do its work. Threads:
// immutable once loaded.
#pragma once

#include <cudnn_graph.h>

#include <memory>

#include "absl/status/statusor.h"

namespace sluice {

struct Cudnn {
  decltype(&cudnnCreate) create;
  decltype(&cudnnDestroy) destroy;
  decltype(&cudnnSetStream) set_stream;
  decltype(&cudnnGetVersion) version;
  decltype(&cudnnGetErrorString) error_string;
  decltype(&cudnnBackendCreateDescriptor) create_descriptor;
  decltype(&cudnnBackendDestroyDescriptor) destroy_descriptor;
  decltype(&cudnnBackendSetAttribute) set;
  decltype(&cudnnBackendGetAttribute) get;
  decltype(&cudnnBackendFinalize) finalize;
  decltype(&cudnnBackendExecute) execute;

  // FailedPrecondition names the library and where it was looked for.
  static absl::StatusOr<std::shared_ptr<const Cudnn>> Load();
};

}  // namespace sluice
