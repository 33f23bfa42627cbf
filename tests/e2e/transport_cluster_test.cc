// Prefill and decode as processes, joined by each transport and on each device there is: a conversation, and
// the death of either in the middle of a hand-off.
#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <thread>

#include "absl/strings/str_cat.h"
#include "kernels/make_backend.h"
#include "tests/support/long_document.h"
#include "tests/support/process_cluster.h"

namespace sluice {
namespace {

using testing::HasSubstr;

struct Joint {
  std::string name, transport, prefill_device, decode_device;
  int gpus;
};
void PrintTo(const Joint& joint, std::ostream* os) { *os << joint.name; }

class TransportCluster : public testing::TestWithParam<Joint> {
 protected:
  void SetUp() override {
    const Joint& joint = GetParam();
    if (CountGpus() < joint.gpus) GTEST_SKIP() << joint.gpus << " GPUs are needed";
    ProcessCluster::Options options;
    options.worker_flags = {"--transport", joint.transport};
    options.prefill_flags = {"--device", joint.prefill_device};
    options.decode_flags = {"--device", joint.decode_device};
    cluster_ = std::make_unique<ProcessCluster>(options);
    ASSERT_TRUE(cluster_->WaitReady()) << cluster_->Logs();
  }
  void TearDown() override {
    if (HasFailure()) std::fprintf(stderr, "%s\n", cluster_->Logs().c_str());
  }
  bool fast() const { return GetParam().gpus > 0; }

  static std::string Document(int characters) {
    return LongDocument(characters, {{"quiet-harbor", "4718293"}}, 1);
  }
  static v1::ChatRequest Ask(const std::string& content, const std::string& preset, int max_tokens) {
    v1::ChatRequest request;
    v1::Message* message = request.mutable_messages()->add_messages();
    message->set_role("user");
    message->set_content(content);
    request.mutable_compression()->set_preset(preset);
    request.mutable_sampling()->set_temperature(0);
    request.mutable_stopping()->set_max_tokens(max_tokens);
    return request;
  }
  grpc::Status Chat(const v1::ChatRequest& request, v1::ChatResponse* response) {
    grpc::ClientContext context;
    context.set_deadline(absl::ToChronoTime(absl::Now() + kPatience * absl::Seconds(60)));
    return cluster_->inference().Chat(&context, request, response);
  }
  // Kills `victim` while decode holds pages for a hand-off that is not through, and answers what the requests
  // got.
  std::vector<grpc::Status> KillMidTransfer(const std::string& victim) {
    const v1::ChatRequest request = Ask(Document(fast() ? 100000 : 16000), "full", 8);
    std::vector<grpc::Status> statuses(fast() ? 12 : 2);
    std::vector<std::thread> clients;
    for (grpc::Status& status : statuses) {
      clients.emplace_back([&] {
        v1::ChatResponse response;
        status = Chat(request, &response);
      });
    }
    const absl::Time end = absl::Now() + kPatience * absl::Seconds(30);
    bool leased = false;
    while (!leased && absl::Now() < end) {
      leased = cluster_->Metric("decode0", "sluice_kv_blocks", {"state=\"leased\""}) > 0;
      if (!leased) absl::SleepFor(absl::Milliseconds(1));
    }
    EXPECT_TRUE(leased);
    cluster_->Kill(victim, SIGKILL);
    for (std::thread& client : clients) client.join();
    return statuses;
  }
  bool WaitNothingQuarantined(const std::string& process) {
    const absl::Time end = absl::Now() + kPatience * absl::Seconds(15);
    while (absl::Now() < end) {
      if (cluster_->Metric(process, "sluice_kv_ring_slots", {"state=\"quarantined\""}) == 0) return true;
      absl::SleepFor(absl::Milliseconds(50));
    }
    return false;
  }
  void ExpectServes() {
    ASSERT_TRUE(cluster_->WaitReady()) << cluster_->Logs();
    v1::ChatResponse response;
    const grpc::Status status = Chat(Ask(Document(3000), "full", 8), &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    EXPECT_TRUE(cluster_->WaitPagesFree("decode0"));
  }

  std::unique_ptr<ProcessCluster> cluster_;
};

TEST_P(TransportCluster, CarriesAConversation) {
  grpc::ClientContext context;
  v1::Session session;
  ASSERT_TRUE(cluster_->sessions().CreateSession(&context, {}, &session).ok());
  for (int turn = 0; turn < 3; ++turn) {
    const std::string question =
        "What is the special magic number for quiet-harbor mentioned in the provided text? Answer with only "
        "the "
        "number.";
    v1::ChatRequest request =
        Ask(turn == 0 ? absl::StrCat(Document(fast() ? 40000 : 8000), "\n", question) : question, "sluice-mt",
            16);
    v1::Message message = request.messages().messages(0);
    request.mutable_session_turn()->set_session_id(session.id());
    *request.mutable_session_turn()->add_new_messages() = message;
    request.mutable_compression()->set_budget_tokens(512);
    v1::ChatResponse response;
    const grpc::Status status = Chat(request, &response);
    ASSERT_TRUE(status.ok()) << status.error_message();
    EXPECT_THAT(response.text(), HasSubstr("4718293")) << "turn " << turn;
    EXPECT_GT(response.done().compression().wire_bytes(), 0u);
  }
  EXPECT_TRUE(cluster_->WaitPagesFree("decode0"));
  EXPECT_EQ(cluster_->Metric("decode0", "sluice_kv_integrity_mismatch_total", {}), 0);
}

TEST_P(TransportCluster, PrefillDiesMidTransfer) {
  KillMidTransfer("prefill0");
  EXPECT_TRUE(cluster_->WaitPagesFree("decode0"));
  EXPECT_TRUE(WaitNothingQuarantined("decode0"));
  cluster_->Start("prefill0");
  ExpectServes();
}

TEST_P(TransportCluster, DecodeDiesMidTransfer) {
  KillMidTransfer("decode0");
  EXPECT_TRUE(WaitNothingQuarantined("prefill0"));
  cluster_->Start("decode0");
  ExpectServes();
}

INSTANTIATE_TEST_SUITE_P(Joints, TransportCluster,
                         testing::Values(Joint{"Cpus", "ucx", "cpu", "cpu", 0},
                                         Joint{"OneGpu", "ucx", "cuda:0", "cuda:0", 1},
                                         Joint{"CpuAndGpu", "ucx", "cpu", "cuda:0", 1},
                                         Joint{"TwoGpus", "ucx", "cuda:0", "cuda:1", 2},
                                         Joint{"Nccl", "nccl", "cuda:0", "cuda:1", 2}),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace sluice
