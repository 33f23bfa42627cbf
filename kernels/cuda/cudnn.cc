#include "kernels/cuda/cudnn.h"

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "kernels/cuda/runtime_library.h"

namespace sluice {

absl::StatusOr<std::shared_ptr<const Cudnn>> Cudnn::Load() {
  SLUICE_ASSIGN_OR_RETURN(RuntimeLibrary library,
                          RuntimeLibrary::Open(absl::StrCat("libcudnn.so.", CUDNN_MAJOR)));
  auto cudnn = std::make_shared<Cudnn>();
  library.Bind(cudnn->create, "cudnnCreate");
  library.Bind(cudnn->destroy, "cudnnDestroy");
  library.Bind(cudnn->set_stream, "cudnnSetStream");
  library.Bind(cudnn->version, "cudnnGetVersion");
  library.Bind(cudnn->error_string, "cudnnGetErrorString");
  library.Bind(cudnn->create_descriptor, "cudnnBackendCreateDescriptor");
  library.Bind(cudnn->destroy_descriptor, "cudnnBackendDestroyDescriptor");
  library.Bind(cudnn->set, "cudnnBackendSetAttribute");
  library.Bind(cudnn->get, "cudnnBackendGetAttribute");
  library.Bind(cudnn->finalize, "cudnnBackendFinalize");
  library.Bind(cudnn->execute, "cudnnBackendExecute");
  SLUICE_RETURN_IF_ERROR(library.status());
  return std::shared_ptr<const Cudnn>(std::move(cudnn));
}

}  // namespace sluice
