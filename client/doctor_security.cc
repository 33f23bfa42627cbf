#include "client/doctor_security.h"

#include <memory>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "client/up_plan.h"
#include "common/rpc/certificate.h"
#include "sluice/v1/models.grpc.pb.h"

namespace sluice {
namespace {

constexpr absl::Duration kTimeout = absl::Seconds(3);

bool OfThisMachine(absl::string_view host) {
  return absl::StartsWith(host, "127.") || host == "localhost" || host == "[::1]";
}

// What somebody without a key is told.
absl::Status AskWithoutKey(const std::string& router, Credentials credentials) {
  credentials.api_key.clear();
  absl::StatusOr<std::unique_ptr<Connection>> connection =
      Connection::Open(router, "--router", kTimeout, nullptr, credentials);
  if (!connection.ok()) return connection.status();
  std::unique_ptr<v1::Models::Stub> stub = v1::Models::NewStub((*connection)->channel());
  return (*connection)->Call(&v1::Models::Stub::ListModels, stub.get(), v1::ListModelsRequest()).status();
}

}  // namespace

void CheckSecurity(const std::string& router, const Credentials& credentials, Report* report) {
  const std::string host = router.substr(0, router.rfind(':'));
  const bool local = OfThisMachine(host);
  const absl::Status asked = AskWithoutKey(router, credentials);
  if (absl::IsUnauthenticated(asked)) {
    report->Line(kOk, "keys", "the router asks for an API key");
  } else if (asked.ok()) {
    report->Line(local ? kOk : kWarn, "keys", "whoever reaches the router may ask it, and read all sessions",
                 "sluice keys create makes a file for its --api-keys");
  }
  if (credentials.tls.any()) {
    report->Line(kOk, "tls", "prompts, replies and keys are encrypted on their way to the router");
  } else {
    report->Line(local ? kOk : kWarn, "tls", "prompts, replies and keys cross the network in the clear",
                 "give the router --tls-cert and --tls-key");
  }
  int port = 0;
  if (!local && absl::SimpleAtoi(router.substr(router.rfind(':') + 1), &port)) {
    for (int index : {kRouterInternal, kRouterMetrics}) {
      const std::string address = absl::StrCat(host, ":", port + index);
      TlsFiles none;
      if (!absl::IsFailedPrecondition(ProbeTls(address, none, "", kTimeout))) continue;  // closed, or TLS
      report->Line(kWarn, "private ports", absl::StrCat(address, " is open to this machine, without TLS"),
                   absl::StrCat("keep the ", UpPortUse(index), " from clients"));
    }
  }
  report->Line(kOk, "private ports",
               "keep from clients: --internal-listen, --admin-listen, metrics and all ports of workers; KV "
               "between workers (UCX, RDMA, NCCL) is not encrypted, whatever the TLS");
}

}  // namespace sluice
