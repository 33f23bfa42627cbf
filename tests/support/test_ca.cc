#include "tests/support/test_ca.h"

#include <openssl/pem.h>
#include <openssl/x509v3.h>

#include <algorithm>
#include <cstdio>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/status.h"

namespace sluice {
namespace {

void Extend(X509* certificate, X509* issuer, int what, const std::string& value) {
  X509V3_CTX context;
  X509V3_set_ctx(&context, issuer, certificate, nullptr, nullptr, 0);
  X509_EXTENSION* extension = X509V3_EXT_conf_nid(nullptr, &context, what, value.c_str());
  SLUICE_CHECK(extension != nullptr && X509_add_ext(certificate, extension, -1) == 1);
  X509_EXTENSION_free(extension);
}

X509* NewCertificate(const std::string& name, EVP_PKEY* key, X509* issuer, absl::Duration expires_in) {
  static long serial = 1;
  X509* out = X509_new();
  X509_set_version(out, 2);
  ASN1_INTEGER_set(X509_get_serialNumber(out), ++serial * 1000003 + absl::ToUnixSeconds(absl::Now()));
  const absl::Time now = absl::Now();
  const absl::Time begins = std::min(now, now + expires_in) - absl::Hours(1);
  ASN1_TIME_set(X509_getm_notBefore(out), absl::ToTimeT(begins));
  ASN1_TIME_set(X509_getm_notAfter(out), absl::ToTimeT(now + expires_in));
  X509_set_pubkey(out, key);
  X509_NAME_add_entry_by_txt(X509_get_subject_name(out), "CN", MBSTRING_UTF8,
                             reinterpret_cast<const unsigned char*>(name.c_str()), -1, -1, 0);
  X509_set_issuer_name(out, X509_get_subject_name(issuer == nullptr ? out : issuer));
  return out;
}

// A reader sees the old file or the new one.
template <class Write>
void WriteFile(const std::string& path, Write write) {
  const std::string fresh = path + ".new";
  FILE* file = std::fopen(fresh.c_str(), "w");
  SLUICE_CHECK(file != nullptr);
  SLUICE_CHECK(write(file) == 1);
  SLUICE_CHECK(std::fclose(file) == 0 && std::rename(fresh.c_str(), path.c_str()) == 0);
}

}  // namespace

TestCa::TestCa(std::string directory, const std::string& name)
    : directory_(std::move(directory)), name_(name), key_(EVP_EC_gen("P-256")) {
  certificate_ = NewCertificate(name, key_, nullptr, absl::Hours(48));
  Extend(certificate_, certificate_, NID_basic_constraints, "critical,CA:TRUE");
  Extend(certificate_, certificate_, NID_key_usage, "critical,keyCertSign,cRLSign");
  SLUICE_CHECK(X509_sign(certificate_, key_, EVP_sha256()) > 0);
  WriteFile(path(), [&](FILE* file) { return PEM_write_X509(file, certificate_); });
}

TestCa::~TestCa() {
  X509_free(certificate_);
  EVP_PKEY_free(key_);
}

void TestCa::Issue(const std::string& name, absl::Duration expires_in, const std::string& dns_name) const {
  EVP_PKEY* key = EVP_EC_gen("P-256");
  X509* certificate = NewCertificate(name, key, certificate_, expires_in);
  Extend(certificate, certificate_, NID_subject_alt_name,
         absl::StrCat("IP:127.0.0.1,IP:127.0.0.2,DNS:localhost,DNS:", dns_name));
  SLUICE_CHECK(X509_sign(certificate, key_, EVP_sha256()) > 0);
  WriteFile(Key(name), [&](FILE* file) {
    return PEM_write_PrivateKey(file, key, nullptr, nullptr, 0, nullptr, nullptr);
  });
  WriteFile(Crt(name), [&](FILE* file) { return PEM_write_X509(file, certificate); });
  X509_free(certificate);
  EVP_PKEY_free(key);
}

}  // namespace sluice
