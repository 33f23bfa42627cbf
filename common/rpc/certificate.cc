#include "common/rpc/certificate.h"

#include <fcntl.h>
#include <netdb.h>
#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <memory>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/status.h"

namespace sluice {
namespace {

template <auto free_function>
struct Free {
  template <class T>
  void operator()(T* object) const {
    free_function(object);
  }
};
using BioPtr = std::unique_ptr<BIO, Free<BIO_free_all>>;
using X509Ptr = std::unique_ptr<X509, Free<X509_free>>;
using KeyPtr = std::unique_ptr<EVP_PKEY, Free<EVP_PKEY_free>>;
using ContextPtr = std::unique_ptr<SSL_CTX, Free<SSL_CTX_free>>;
using SslPtr = std::unique_ptr<SSL, Free<SSL_free>>;

constexpr absl::Duration kAlertWait = absl::Milliseconds(300);

absl::Status Bad(const TlsFile& file, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat(file.flag, " ", file.path, ": ", what));
}

BioPtr Memory(const std::string& text) {
  return BioPtr(BIO_new_mem_buf(text.data(), static_cast<int>(text.size())));
}

X509Ptr FirstCertificate(const std::string& pem) {
  X509Ptr found(PEM_read_bio_X509(Memory(pem).get(), nullptr, nullptr, nullptr));
  ERR_clear_error();
  return found;
}

// A key that asks for a password is of no use to a server.
int NoPassword(char*, int, int, void*) { return 0; }

std::string When(absl::Time time) {
  return absl::FormatTime("%Y-%m-%d %H:%M:%S UTC", time, absl::UTCTimeZone());
}

absl::Time TimeOf(const ASN1_TIME* time) {
  std::tm tm{};
  if (ASN1_TIME_to_tm(time, &tm) != 1) return absl::InfinitePast();
  return absl::FromTM(tm, absl::UTCTimeZone());
}

class Socket {
 public:
  ~Socket() {
    if (fd_ >= 0) close(fd_);
  }
  int fd() const { return fd_; }

  absl::Status Dial(const std::string& address, absl::Time until) {
    const size_t colon = address.rfind(':');
    std::string host = address.substr(0, colon);
    if (host.size() > 2 && host.front() == '[' && host.back() == ']') host = host.substr(1, host.size() - 2);
    addrinfo hints{}, *found = nullptr;
    hints.ai_socktype = SOCK_STREAM;
    if (int error = getaddrinfo(host.c_str(), address.substr(colon + 1).c_str(), &hints, &found);
        error != 0) {
      return absl::UnavailableError(absl::StrCat(address, ": ", gai_strerror(error)));
    }
    fd_ = socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    const int rc = connect(fd_, found->ai_addr, found->ai_addrlen);
    freeaddrinfo(found);
    if (rc != 0 && errno != EINPROGRESS) return Errno(address, errno);
    if (!Wait(POLLOUT, until)) return absl::DeadlineExceededError(absl::StrCat(address, ": no answer"));
    int error = 0;
    socklen_t size = sizeof(error);
    getsockopt(fd_, SOL_SOCKET, SO_ERROR, &error, &size);
    return error == 0 ? absl::OkStatus() : Errno(address, error);
  }
  bool Wait(short events, absl::Time until) const {
    pollfd entry = {fd_, events, 0};
    const int64_t ms = absl::ToInt64Milliseconds(until - absl::Now());
    return ms > 0 && poll(&entry, 1, static_cast<int>(ms)) == 1;
  }

 private:
  static absl::Status Errno(const std::string& address, int error) {
    return absl::UnavailableError(absl::StrCat(address, ": ", std::strerror(error)));
  }
  int fd_ = -1;
};

// What OpenSSL has to say, once.
std::string LastError() {
  const unsigned long error = ERR_get_error();
  ERR_clear_error();
  const char* reason = error == 0 ? nullptr : ERR_reason_error_string(error);
  return reason == nullptr ? "the connection was closed" : reason;
}

// 1: done. 0: no. While the other end is slow: until `until`.
template <class Step>
bool Drive(SSL* ssl, const Socket& socket, absl::Time until, Step step) {
  while (true) {
    ERR_clear_error();
    const int rc = step();
    if (rc > 0) return true;
    const int want = SSL_get_error(ssl, rc);
    if (want != SSL_ERROR_WANT_READ && want != SSL_ERROR_WANT_WRITE) return false;
    if (!socket.Wait(want == SSL_ERROR_WANT_READ ? POLLIN : POLLOUT, until)) return false;
  }
}

}  // namespace

absl::StatusOr<std::string> ReadPem(const TlsFile& file) {
  std::ifstream in(file.path);
  if (!in) return Bad(file, std::strerror(errno));
  std::stringstream text;
  text << in.rdbuf();
  return text.str();
}

absl::StatusOr<absl::Time> CheckOwnCertificate(const TlsFile& cert, const std::string& cert_pem,
                                               const TlsFile& key, const std::string& key_pem) {
  const X509Ptr leaf = FirstCertificate(cert_pem);
  if (leaf == nullptr) return Bad(cert, "no certificate in PEM form");
  const KeyPtr own(PEM_read_bio_PrivateKey(Memory(key_pem).get(), nullptr, NoPassword, nullptr));
  ERR_clear_error();
  if (own == nullptr) return Bad(key, "no private key in PEM form, without a password");
  const bool fits = X509_check_private_key(leaf.get(), own.get()) == 1;
  ERR_clear_error();
  if (!fits) return Bad(key, absl::StrCat("not the key of the certificate of ", cert.flag, " ", cert.path));
  const absl::Time begins = TimeOf(X509_get0_notBefore(leaf.get()));
  const absl::Time expires = TimeOf(X509_get0_notAfter(leaf.get()));
  if (absl::Now() >= expires) return Bad(cert, absl::StrCat("expired on ", When(expires), "; renew it"));
  if (absl::Now() < begins) return Bad(cert, absl::StrCat("valid only from ", When(begins), " on"));
  return expires;
}

absl::Status CheckCa(const TlsFile& ca, const std::string& pem) {
  if (FirstCertificate(pem) == nullptr) return Bad(ca, "no certificate in PEM form");
  return absl::OkStatus();
}

absl::Status ProbeTls(const std::string& address, const TlsFiles& files, const std::string& peer_name,
                      absl::Duration timeout) {
  const absl::Time until = absl::Now() + timeout;
  Socket socket;
  SLUICE_RETURN_IF_ERROR(socket.Dial(address, until));
  ContextPtr context(SSL_CTX_new(TLS_client_method()));
  SSL_CTX_set_verify(context.get(), SSL_VERIFY_PEER, nullptr);
  if (files.ca.path.empty() || files.ca.path == kSystemCa) {
    SSL_CTX_set_default_verify_paths(context.get());
  } else if (SSL_CTX_load_verify_locations(context.get(), files.ca.path.c_str(), nullptr) != 1) {
    ERR_clear_error();
    return Bad(files.ca, "no certificate in PEM form");
  }
  if (!files.cert.path.empty() &&
      (SSL_CTX_use_certificate_chain_file(context.get(), files.cert.path.c_str()) != 1 ||
       SSL_CTX_use_PrivateKey_file(context.get(), files.key.path.c_str(), SSL_FILETYPE_PEM) != 1)) {
    return Bad(files.cert, LastError());
  }
  SslPtr ssl(SSL_new(context.get()));
  const std::string host = peer_name.empty() ? address.substr(0, address.rfind(':')) : peer_name;
  X509_VERIFY_PARAM* verify = SSL_get0_param(ssl.get());
  if (X509_VERIFY_PARAM_set1_ip_asc(verify, host.c_str()) != 1) {
    X509_VERIFY_PARAM_set1_host(verify, host.c_str(), 0);
    SSL_set_tlsext_host_name(ssl.get(), host.c_str());
  }
  const unsigned char http2[] = {2, 'h', '2'};
  SSL_set_alpn_protos(ssl.get(), http2, sizeof(http2));
  SSL_set_fd(ssl.get(), socket.fd());
  if (!Drive(ssl.get(), socket, until, [&] { return SSL_connect(ssl.get()); })) {
    const long verdict = SSL_get_verify_result(ssl.get());
    if (verdict != X509_V_OK) {
      return absl::UnauthenticatedError(
          absl::StrCat("the certificate of ", address, ": ", X509_verify_cert_error_string(verdict)));
    }
    return absl::FailedPreconditionError(absl::StrCat(address, " answers, and not with TLS: ", LastError()));
  }
  // A server that refuses our certificate, or the lack of one, says so after the handshake.
  char byte;
  const absl::Time alert = std::min(until, absl::Now() + kAlertWait);
  if (!Drive(ssl.get(), socket, alert, [&] { return SSL_read(ssl.get(), &byte, 1); }) &&
      ERR_peek_error() != 0) {
    return absl::UnauthenticatedError(
        absl::StrCat(address, " refuses this client's certificate: ", LastError()));
  }
  ERR_clear_error();
  return absl::OkStatus();
}

bool SpeaksTls(const std::string& address, absl::Duration timeout) {
  TlsFiles none;
  none.ca.path = kSystemCa;
  const absl::Status probe = ProbeTls(address, none, "", timeout);
  return probe.ok() || absl::IsUnauthenticated(probe);
}

}  // namespace sluice
