// Role: a CUDA library that is opened when it is first needed, so that binaries start where it is absent. It
// stays open for the life of the process. Threads: as the caller.
#pragma once

#include <dlfcn.h>

#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"

namespace sluice {

class RuntimeLibrary {
 public:
  // From the library path, else from the toolkit's folder. FailedPrecondition: in neither; ends with `hint`.
  static absl::StatusOr<RuntimeLibrary> Open(std::string name, absl::string_view hint = "") {
    void* handle = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr)
      handle = dlopen(absl::StrCat(SLUICE_CUDA_LIBRARY_DIR "/", name).c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr)
      return absl::FailedPreconditionError(
          absl::StrCat(name, " is neither in the library path nor in " SLUICE_CUDA_LIBRARY_DIR, hint));
    return RuntimeLibrary(std::move(name), handle);
  }

  template <class Function>
  void Bind(Function& function, const char* symbol) {
    function = reinterpret_cast<Function>(dlsym(handle_, symbol));
    if (function == nullptr) missing_ = symbol;
  }
  // FailedPrecondition names a symbol that Bind did not find.
  absl::Status status() const {
    if (missing_.empty()) return absl::OkStatus();
    return absl::FailedPreconditionError(absl::StrCat(name_, " has no ", missing_));
  }

 private:
  RuntimeLibrary(std::string name, void* handle) : name_(std::move(name)), handle_(handle) {}
  std::string name_, missing_;
  void* handle_;
};

}  // namespace sluice
