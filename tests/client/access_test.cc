// Keys and certificates as the command knows them.
#include <gmock/gmock.h>

#include "absl/strings/str_cat.h"
#include "common/auth/api_keys.h"
#include "common/rpc/rpc_server.h"
#include "sluice/v1/models.grpc.pb.h"
#include "tests/client/client_run.h"
#include "tests/support/temp_dir.h"
#include "tests/support/test_ca.h"

namespace sluice {
namespace {

using testing::HasSubstr;
using testing::Not;

// Lists a model to who shows the one key, and no model at all to others.
class Keyed final : public v1::Models::CallbackService {
 public:
  grpc::ServerUnaryReactor* ListModels(grpc::CallbackServerContext* context, const v1::ListModelsRequest*,
                                       v1::ListModelsResponse* response) override {
    const auto& metadata = context->client_metadata();
    const auto key = metadata.find("authorization");
    const bool good = key != metadata.end() && key->second == "Bearer sk-good";
    if (good) response->add_models()->set_id("m");
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    reactor->Finish(good ? grpc::Status::OK : grpc::Status(grpc::StatusCode::UNAUTHENTICATED, "no API key"));
    return reactor;
  }
};

class AccessCommandTest : public testing::Test {
 protected:
  AccessCommandTest() : ca_(dir_.path(), "ca"), other_(dir_.path(), "other") { ca_.Issue("router"); }
  void Serve(bool with_tls) {
    TlsFiles files;
    if (with_tls) files = {{ca_.Crt("router"), "--tls-cert"}, {ca_.Key("router"), "--tls-key"}, {}};
    RpcServerOptions options{
        .address = "127.0.0.1:0", .flag = "--test", .tls = *Tls::Open(files, TlsUse::kServer)};
    server_ = *RpcServer::Start(options, {&service_});
    server_->SetServing("sluice.v1.Inference", true);
    address_ = absl::StrCat("127.0.0.1:", server_->port());
  }
  std::string Doctor(std::vector<std::string> words) {
    ClientRun run;
    words.insert(words.begin(), {"doctor", "--router", address_, "--admin", "127.0.0.1:1"});
    run.Run(words);
    return run.out();
  }
  TempDir dir_;
  TestCa ca_, other_;
  Keyed service_;
  std::unique_ptr<RpcServer> server_;
  std::string address_;
};

TEST_F(AccessCommandTest, KeysAreCreatedListedAndRevoked) {
  const std::string file = dir_.path() + "/keys.json";
  ClientRun run;
  ASSERT_EQ(run.Run({"keys", "create", "--file", file, "--owner", "alice", "--requests-per-minute", "60"}), 0)
      << run.err();
  ASSERT_EQ(run.Run({"keys", "create", "--file", file, "--owner", "ops", "--admin"}), 0);
  absl::StatusOr<std::vector<ApiKey>> keys = ReadApiKeys(file);
  ASSERT_TRUE(keys.ok()) << keys.status();
  ASSERT_EQ(keys->size(), 2);
  EXPECT_TRUE(Opens((*keys)[0], run.out().substr(0, run.out().find('\n'))));
  EXPECT_EQ((*keys)[0].limits.requests_per_minute, 60);
  EXPECT_TRUE((*keys)[1].admin);
  ClientRun list;
  ASSERT_EQ(list.Run({"keys", "list", "--file", file}), 0);
  EXPECT_THAT(list.out(), HasSubstr((*keys)[0].id + "  alice"));
  EXPECT_THAT(list.out(), Not(HasSubstr((*keys)[0].sha256)));
  ASSERT_EQ(run.Run({"keys", "revoke", (*keys)[0].id, "--file", file}), 0);
  EXPECT_EQ(ReadApiKeys(file)->size(), 1);
  EXPECT_EQ(run.Run({"keys", "revoke", (*keys)[0].id, "--file", file}), 1);
  EXPECT_EQ(run.Run({"keys", "create", "--file", file, "--owner", "a b"}), 1);
  EXPECT_THAT(run.err(), HasSubstr("owner: want 1 to 64"));
}

TEST_F(AccessCommandTest, DoctorSaysWhoMayAskAndWhatIsEncrypted) {
  Serve(/*with_tls=*/true);
  const std::string good = Doctor({"--tls-ca", ca_.path(), "--api-key", "sk-good"});
  EXPECT_THAT(good, HasSubstr("ok    served model: m"));
  EXPECT_THAT(good, HasSubstr("ok    keys: the router asks for an API key"));
  EXPECT_THAT(good, HasSubstr("ok    tls: prompts"));
  EXPECT_THAT(good, HasSubstr("NCCL) is not encrypted"));
  EXPECT_THAT(Doctor({"--tls-ca", ca_.path()}), HasSubstr("fail  served model: no API key"));
  EXPECT_THAT(Doctor({"--tls-ca", other_.path()}), HasSubstr("unable to get local issuer certificate"));
  EXPECT_THAT(Doctor({}), HasSubstr("the router speaks TLS: name its CA with --tls-ca"));
}

TEST_F(AccessCommandTest, AFailedHandshakeSaysWhy) {
  Serve(/*with_tls=*/true);
  ClientRun run;
  EXPECT_EQ(run.Run({"sessions", "list", "--router", address_, "--tls-ca", other_.path()}), 1);
  EXPECT_THAT(run.err(), HasSubstr("unable to get local issuer certificate"));
  EXPECT_EQ(run.Run({"sessions", "list", "--router", address_}), 1);
  EXPECT_THAT(run.err(), HasSubstr("name its CA with --tls-ca"));
  Serve(/*with_tls=*/false);
  EXPECT_EQ(run.Run({"sessions", "list", "--router", address_, "--tls-ca", ca_.path()}), 1);
  EXPECT_THAT(run.err(), HasSubstr("answers, and not with TLS"));
  EXPECT_EQ(run.Run({"sessions", "list", "--router", address_, "--tls-key", ca_.Key("router")}), 1);
  EXPECT_THAT(run.err(), HasSubstr("--tls-cert: missing, --tls-key needs it"));
}

}  // namespace
}  // namespace sluice
