#include "kernels/cuda/cudnn.h"

#include <dlfcn.h>

#include <string>

#include "absl/strings/str_cat.h"

namespace sluice {

absl::StatusOr<std::shared_ptr<const Cudnn>> Cudnn::Load() {
  const std::string name = absl::StrCat("libcudnn.so.", CUDNN_MAJOR);
  void* library = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr)
    library = dlopen(absl::StrCat(SLUICE_CUDA_LIBRARY_DIR "/", name).c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr)
    return absl::FailedPreconditionError(
        absl::StrCat(name, " is neither in the library path nor in " SLUICE_CUDA_LIBRARY_DIR));

  auto cudnn = std::make_shared<Cudnn>();  // the library stays open for the life of the process
  std::string missing;
  auto bind = [&](auto& function, const char* symbol) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(library, symbol));
    if (function == nullptr) missing = symbol;
  };
  bind(cudnn->create, "cudnnCreate");
  bind(cudnn->destroy, "cudnnDestroy");
  bind(cudnn->set_stream, "cudnnSetStream");
  bind(cudnn->version, "cudnnGetVersion");
  bind(cudnn->error_string, "cudnnGetErrorString");
  bind(cudnn->create_descriptor, "cudnnBackendCreateDescriptor");
  bind(cudnn->destroy_descriptor, "cudnnBackendDestroyDescriptor");
  bind(cudnn->set, "cudnnBackendSetAttribute");
  bind(cudnn->get, "cudnnBackendGetAttribute");
  bind(cudnn->finalize, "cudnnBackendFinalize");
  bind(cudnn->execute, "cudnnBackendExecute");
  if (!missing.empty()) return absl::FailedPreconditionError(absl::StrCat(name, " has no ", missing));
  return std::shared_ptr<const Cudnn>(std::move(cudnn));
}

}  // namespace sluice
