// Role: a certificate authority of a test's own: PEM files for this machine, valid as long as the test says.
// Threads: one.
#pragma once

#include <openssl/evp.h>
#include <openssl/x509.h>

#include <memory>
#include <string>

#include "absl/time/time.h"

namespace sluice {

class TestCa {
 public:
  // Writes DIRECTORY/NAME.crt.
  TestCa(std::string directory, const std::string& name);
  ~TestCa();

  std::string path() const { return Crt(name_); }
  std::string Crt(const std::string& name) const { return directory_ + "/" + name + ".crt"; }
  std::string Key(const std::string& name) const { return directory_ + "/" + name + ".key"; }

  // Writes Crt(name) and Key(name), each in one step: a certificate for 127.0.0.1, localhost and `dns_name`.
  void Issue(const std::string& name, absl::Duration expires_in = absl::Hours(24),
             const std::string& dns_name = "sluice.test") const;

 private:
  const std::string directory_;
  const std::string name_;
  EVP_PKEY* key_;
  X509* certificate_;
};

}  // namespace sluice
