// Who is believed, who is not, and what both ends are told.
#include "common/rpc/tls.h"

#include <gmock/gmock.h>

#include "absl/strings/str_cat.h"
#include "common/rpc/certificate.h"
#include "common/rpc/rpc_server.h"
#include "tests/common/rpc/echo_service.h"
#include "tests/support/temp_dir.h"
#include "tests/support/test_ca.h"

namespace sluice {
namespace {

using testing::HasSubstr;

class TlsTest : public testing::Test {
 protected:
  TlsTest() : ca_(dir_.path(), "ca"), other_(dir_.path(), "other-ca") {}

  TlsFiles Files(const std::string& name, const std::string& ca) const {
    TlsFiles files;
    files.cert = {name.empty() ? "" : ca_.Crt(name), "--cert"};
    files.key = {name.empty() ? "" : ca_.Key(name), "--key"};
    files.ca = {ca, "--ca"};
    return files;
  }
  std::shared_ptr<Tls> Open(const std::string& name, const std::string& ca, TlsUse use,
                            const std::string& peer_name = "") {
    absl::StatusOr<std::shared_ptr<Tls>> tls = Tls::Open(Files(name, ca), use, peer_name);
    EXPECT_TRUE(tls.ok()) << tls.status();
    return tls.ok() ? *tls : nullptr;
  }
  void Serve(std::shared_ptr<Tls> tls) {
    RpcServerOptions options{.address = "127.0.0.1:0", .flag = "--listen", .tls = std::move(tls)};
    absl::StatusOr<std::unique_ptr<RpcServer>> server = RpcServer::Start(options, {&service_});
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    address_ = absl::StrCat("127.0.0.1:", server_->port());
  }
  std::shared_ptr<grpc::Channel> Dial(const Tls* tls) { return OpenChannel(address_, tls, OwnConnection()); }
  absl::Status Probe(const TlsFiles& files) {
    return ProbeTls(address_, files, "", kPatience * absl::Seconds(5));
  }

  TempDir dir_;
  TestCa ca_, other_;
  EchoService service_;
  std::unique_ptr<RpcServer> server_;
  std::string address_;
};

TEST_F(TlsTest, AServerServesWhoTrustsItsCa) {
  ca_.Issue("server");
  Serve(Open("server", "", TlsUse::kServer));
  const auto trusting = Open("", ca_.path(), TlsUse::kClient);
  const auto wary = Open("", other_.path(), TlsUse::kClient);
  EXPECT_TRUE(Echo(Dial(trusting.get())).ok());
  EXPECT_EQ(Echo(Dial(wary.get())).error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(Echo(Dial(nullptr)).error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_TRUE(Probe(Files("", ca_.path())).ok());
  const absl::Status why = Probe(Files("", other_.path()));
  EXPECT_EQ(why.code(), absl::StatusCode::kUnauthenticated);
  EXPECT_THAT(std::string(why.message()), HasSubstr("unable to get local issuer certificate"));
  EXPECT_TRUE(SpeaksTls(address_, kPatience * absl::Seconds(5)));
}

TEST_F(TlsTest, AServerWithoutTlsIsKnownAsOne) {
  Serve(nullptr);
  EXPECT_TRUE(Echo(Dial(nullptr)).ok());
  EXPECT_FALSE(SpeaksTls(address_, kPatience * absl::Seconds(2)));
  EXPECT_EQ(Probe(Files("", ca_.path())).code(), absl::StatusCode::kFailedPrecondition);
  const auto client = Open("", ca_.path(), TlsUse::kClient);
  EXPECT_EQ(Echo(Dial(client.get())).error_code(), grpc::StatusCode::UNAVAILABLE);
}

TEST_F(TlsTest, ClientsMustShowACertificateOfTheNamedCa) {
  ca_.Issue("server");
  ca_.Issue("client");
  other_.Issue("stranger");
  Serve(Open("server", ca_.path(), TlsUse::kMutual));
  const auto known = Open("client", ca_.path(), TlsUse::kMutual);
  const auto stranger = Open("stranger", ca_.path(), TlsUse::kMutual);
  const auto nobody = Open("", ca_.path(), TlsUse::kClient);
  EXPECT_TRUE(Echo(Dial(known.get())).ok());
  EXPECT_EQ(Echo(Dial(stranger.get())).error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(Echo(Dial(nobody.get())).error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_TRUE(Probe(Files("client", ca_.path())).ok());
  for (const char* name : {"stranger", ""}) {
    const absl::Status why = Probe(Files(name, ca_.path()));
    EXPECT_EQ(why.code(), absl::StatusCode::kUnauthenticated) << name << why;
    EXPECT_THAT(std::string(why.message()), HasSubstr("refuses this client's certificate")) << name;
  }
}

TEST_F(TlsTest, TheNameOfThePeerMayBeSet) {
  ca_.Issue("server", absl::Hours(1), "decode.cluster");
  Serve(Open("server", ca_.path(), TlsUse::kMutual));
  const auto named = Open("server", ca_.path(), TlsUse::kMutual, "decode.cluster");
  const auto misnamed = Open("server", ca_.path(), TlsUse::kMutual, "elsewhere.cluster");
  EXPECT_TRUE(Echo(Dial(named.get())).ok());
  EXPECT_EQ(Echo(Dial(misnamed.get())).error_code(), grpc::StatusCode::UNAVAILABLE);
}

TEST_F(TlsTest, NewCertificatesServeWithoutARestart) {
  ca_.Issue("server");
  const auto tls = Open("server", "", TlsUse::kServer);
  absl::Time expires;
  tls->OnExpiry([&](absl::Time time) { expires = time; });
  const absl::Time first_expires = expires;
  Serve(tls);
  const auto before = Open("", ca_.path(), TlsUse::kClient);
  const auto after = Open("", other_.path(), TlsUse::kClient);
  const std::shared_ptr<grpc::Channel> old = Dial(before.get());
  ASSERT_TRUE(Echo(old).ok());
  EXPECT_FALSE(Echo(Dial(after.get())).ok());
  const int generation = tls->generation();

  other_.Issue("server", absl::Hours(100));
  tls->Reload();
  EXPECT_EQ(tls->generation(), generation + 1);
  EXPECT_EQ(expires - first_expires, absl::Hours(76));
  EXPECT_TRUE(Echo(Dial(after.get())).ok());
  EXPECT_FALSE(Echo(Dial(before.get())).ok());
  EXPECT_TRUE(Echo(old).ok()) << "a connection keeps what it began with";
  tls->OnExpiry(nullptr);
}

TEST_F(TlsTest, TheFilesAreLookedAtWithoutBeingAsked) {
  ca_.Issue("server");
  const auto tls = Open("server", "", TlsUse::kServer);
  ca_.Issue("server");
  const absl::Time until = absl::Now() + kPatience * absl::Seconds(10);
  while (tls->generation() < 2 && absl::Now() < until) absl::SleepFor(absl::Milliseconds(20));
  EXPECT_GE(tls->generation(), 2);
}

TEST_F(TlsTest, AMistakeLeavesTheOldCertificatesInForce) {
  ca_.Issue("server");
  const auto tls = Open("server", "", TlsUse::kServer);
  Serve(tls);
  const auto client = Open("", ca_.path(), TlsUse::kClient);
  const int generation = tls->generation();
  ca_.Issue("another");
  std::filesystem::copy_file(ca_.Key("another"), ca_.Key("server"),
                             std::filesystem::copy_options::overwrite_existing);
  tls->Reload();
  EXPECT_TRUE(Echo(Dial(client.get())).ok());
  dir_.Write("server.crt", "not a certificate");
  tls->Reload();
  EXPECT_TRUE(Echo(Dial(client.get())).ok());
  EXPECT_EQ(tls->generation(), generation);
}

TEST_F(TlsTest, ExpiredCertificatesAreRefusedAndNamed) {
  ca_.Issue("server");
  ca_.Issue("soon", absl::Seconds(3));
  const auto mutual = Open("server", ca_.path(), TlsUse::kMutual);
  const auto expiring = Open("soon", ca_.path(), TlsUse::kMutual);
  Serve(expiring);
  auto by_expiring = std::move(server_);
  const std::string expiring_address = address_;
  Serve(mutual);
  absl::SleepFor(absl::Milliseconds(4100));

  // A client's.
  EXPECT_EQ(Echo(Dial(expiring.get())).error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(Probe(Files("soon", ca_.path())).code(), absl::StatusCode::kUnauthenticated);
  EXPECT_TRUE(Echo(Dial(mutual.get())).ok()) << "others are served";
  // A server's.
  address_ = expiring_address;
  EXPECT_EQ(Echo(Dial(mutual.get())).error_code(), grpc::StatusCode::UNAVAILABLE);
  const absl::Status why = Probe(Files("server", ca_.path()));
  EXPECT_EQ(why.code(), absl::StatusCode::kUnauthenticated);
  EXPECT_THAT(std::string(why.message()), HasSubstr("certificate has expired"));
  // One's own, at the start.
  const absl::Status start = Tls::Open(Files("soon", ca_.path()), TlsUse::kMutual).status();
  EXPECT_EQ(start.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(start.message()),
              HasSubstr(absl::StrCat("--cert ", ca_.Crt("soon"), ": expired on ")));
}

TEST_F(TlsTest, WhatIsMissingOrDoesNotFitIsNamed) {
  ca_.Issue("server");
  ca_.Issue("another");
  const auto error = [&](TlsFiles files, TlsUse use) {
    return std::string(Tls::Open(std::move(files), use).status().message());
  };
  EXPECT_EQ(*Tls::Open(Files("", ""), TlsUse::kServer), nullptr);
  EXPECT_THAT(error(Files("", ca_.path()), TlsUse::kServer), HasSubstr("--cert: missing, --ca needs it"));
  EXPECT_THAT(error(Files("server", ""), TlsUse::kMutual), HasSubstr("--ca: missing, --cert needs it"));
  TlsFiles files = Files("server", ca_.path());
  files.key.path = ca_.Key("another");
  EXPECT_THAT(error(files, TlsUse::kMutual), HasSubstr("not the key of the certificate of --cert"));
  files.key.path = dir_.path() + "/none";
  EXPECT_THAT(error(files, TlsUse::kMutual), HasSubstr("--key " + files.key.path + ": No such file"));
  files = Files("server", ca_.Key("server"));
  EXPECT_THAT(error(files, TlsUse::kMutual), HasSubstr("--ca " + ca_.Key("server") + ": no certificate"));
}

}  // namespace
}  // namespace sluice
