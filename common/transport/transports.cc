#include "common/transport/transports.h"

#include <functional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status.h"
#include "common/transport/loopback.h"
#include "common/transport/nccl.h"
#include "common/transport/ucx.h"

namespace sluice {
namespace {

using Made = absl::StatusOr<std::unique_ptr<KvTransport>>;

Made MakeLoopback(const TransportOptions& options) {
  return std::make_unique<LoopbackTransport>(LoopbackFabric::Process(), options.backend);
}

Made MakeUcx(const TransportOptions& options) {
  UcxOptions ucx;
  ucx.backend = options.backend;
  ucx.tls = options.ucx_tls;
  SLUICE_ASSIGN_OR_RETURN(std::unique_ptr<KvTransport> made, UcxTransport::Create(ucx));
  return made;
}

Made MakeUcxShm(const TransportOptions& options) {
  SLUICE_ASSIGN_OR_RETURN(
      std::unique_ptr<KvTransport> made,
      UcxTransport::Create({"ucx-shm", "posix", /*peer_error_handling=*/false, options.backend}));
  return made;
}

Made MakeNccl(const TransportOptions& options) {
  SLUICE_ASSIGN_OR_RETURN(std::unique_ptr<KvTransport> made, NcclTransport::Create(options.backend));
  return made;
}

struct Entry {
  const char* name;
  Made (*make)(const TransportOptions&);
  bool leaves_process;
};
constexpr Entry kTransports[] = {
    {"loopback", MakeLoopback, false},
    {"ucx", MakeUcx, true},         // processes of any hosts: TCP, RDMA; GPUs of one host directly
    {"ucx-shm", MakeUcxShm, true},  // processes of one host: shared memory
    {"nccl", MakeNccl, true},       // GPUs, one for each process
};

}  // namespace

std::vector<std::string> TransportNames() {
  std::vector<std::string> names;
  for (const Entry& entry : kTransports) names.push_back(entry.name);
  return names;
}

std::vector<std::string> ProcessTransportNames() {
  std::vector<std::string> names;
  for (const Entry& entry : kTransports)
    if (entry.leaves_process) names.push_back(entry.name);
  return names;
}

Made MakeTransport(absl::string_view name, const TransportOptions& options) {
  for (const Entry& entry : kTransports) {
    if (name == entry.name) return entry.make(options);
  }
  return absl::InvalidArgumentError(
      absl::StrCat("transport: ", name, ", known: ", absl::StrJoin(TransportNames(), ", ")));
}

}  // namespace sluice
