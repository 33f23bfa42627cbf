// Role: what OpenSSL says of certificates, in words with the flag to change; and why a TLS connection to a
// server fails, which gRPC does not tell. Threads: pure functions, but for the files and the connection.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/rpc/tls.h"

namespace sluice {

absl::StatusOr<std::string> ReadPem(const TlsFile& file);

// When the certificate expires. InvalidArgument: it has, it is not valid yet, or the key is another one's.
absl::StatusOr<absl::Time> CheckOwnCertificate(const TlsFile& cert, const std::string& cert_pem,
                                               const TlsFile& key, const std::string& key_pem);
absl::Status CheckCa(const TlsFile& ca, const std::string& pem);

// Connects and says what is wrong, OK if nothing is: an expired certificate, one of another CA or for
// another host, one that refuses ours are Unauthenticated, a server without TLS is FailedPrecondition, no
// server Unavailable or DeadlineExceeded. Blocks for `timeout` at most.
// peer_name: as Tls's; empty: the host of `address`.
absl::Status ProbeTls(const std::string& address, const TlsFiles& files, const std::string& peer_name,
                      absl::Duration timeout);
// Whether the server there begins a TLS handshake.
bool SpeaksTls(const std::string& address, absl::Duration timeout);

}  // namespace sluice
