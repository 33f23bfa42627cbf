// Prefill and decode as processes whose models lie on several devices: a first prompt after each start, a
// conversation, and the death of either server with all its ranks.
#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <signal.h>

#include "absl/strings/str_cat.h"
#include "kernels/make_backend.h"
#include "tests/support/long_document.h"
#include "tests/support/process_cluster.h"

namespace sluice {
namespace {

using testing::HasSubstr;

struct Sizes {
  int prefill, decode;  // ranks
};
void PrintTo(const Sizes& sizes, std::ostream* os) { *os << sizes.prefill << " to " << sizes.decode; }

class RankedCluster : public testing::TestWithParam<Sizes> {
 protected:
  void SetUp() override {
    if (CountGpus() == 1) GTEST_SKIP() << "needs two GPUs, or none";
    ProcessCluster::Options options;
    options.prefill_flags = {"--tensor-parallel-size", absl::StrCat(GetParam().prefill)};
    options.decode_flags = {"--tensor-parallel-size", absl::StrCat(GetParam().decode)};
    cluster_ = std::make_unique<ProcessCluster>(options);
    ASSERT_TRUE(cluster_->WaitReady()) << cluster_->Logs();
  }
  void TearDown() override {
    if (HasFailure() && cluster_ != nullptr) std::fprintf(stderr, "%s\n", cluster_->Logs().c_str());
  }

  grpc::Status Ask(const std::string& session, const std::string& content, v1::ChatResponse* response) {
    v1::ChatRequest request;
    v1::Message message;
    message.set_role("user");
    message.set_content(content);
    request.mutable_session_turn()->set_session_id(session);
    *request.mutable_session_turn()->add_new_messages() = message;
    request.mutable_compression()->set_preset("sluice-mt");
    request.mutable_compression()->set_budget_tokens(512);
    request.mutable_sampling()->set_temperature(0);
    request.mutable_stopping()->set_max_tokens(16);
    grpc::ClientContext context;
    context.set_deadline(absl::ToChronoTime(absl::Now() + kPatience * absl::Seconds(60)));
    return cluster_->inference().Chat(&context, request, response);
  }
  std::string NewSession() {
    grpc::ClientContext context;
    v1::Session session;
    EXPECT_TRUE(cluster_->sessions().CreateSession(&context, {}, &session).ok());
    return session.id();
  }
  // Two turns over a document.
  void Converse() {
    const std::vector<std::pair<std::string, std::string>> facts = {{"quiet-harbor", "4718293"},
                                                                    {"amber-lantern", "9023517"}};
    const std::string session = NewSession();
    for (size_t turn = 0; turn < facts.size(); ++turn) {
      std::string content = Question(facts[turn].first);
      if (turn == 0) content = absl::StrCat(LongDocument(8000, facts, 1), "\n", content);
      v1::ChatResponse response;
      const grpc::Status status = Ask(session, content, &response);
      ASSERT_TRUE(status.ok()) << status.error_message();
      EXPECT_THAT(response.text(), HasSubstr(facts[turn].second)) << "turn " << turn;
    }
    EXPECT_TRUE(cluster_->WaitPagesFree("decode0"));
  }

  std::unique_ptr<ProcessCluster> cluster_;
};

TEST_P(RankedCluster, ConversesAfterEachStart) {
  Converse();
  for (const char* victim : {"decode0", "prefill0"}) {
    SCOPED_TRACE(victim);
    cluster_->Kill(victim, SIGKILL);
    cluster_->Start(victim);
    ASSERT_TRUE(cluster_->WaitReady()) << cluster_->Logs();
    Converse();
  }
}

INSTANTIATE_TEST_SUITE_P(Sizes, RankedCluster, testing::Values(Sizes{2, 2}, Sizes{2, 1}, Sizes{1, 2}),
                         [](const auto& info) {
                           return absl::StrCat(info.param.prefill, "_to_", info.param.decode);
                         });

}  // namespace
}  // namespace sluice
