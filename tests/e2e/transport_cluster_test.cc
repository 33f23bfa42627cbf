// Prefill and decode as processes, joined by each transport and on each device there is: a conversation, the
// death of either in the middle of a hand-off, and a connection below the floor.
#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <atomic>
#include <functional>
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
    if (CountGpus() < GetParam().gpus) GTEST_SKIP() << GetParam().gpus << " GPUs are needed";
  }
  void TearDown() override {
    if (HasFailure() && cluster_ != nullptr) std::fprintf(stderr, "%s\n", cluster_->Logs().c_str());
  }
  // Prefill and decode servers, as many of each.
  void Up(int pairs, std::vector<std::string> prefill_flags = {}) {
    const Joint& joint = GetParam();
    ProcessCluster::Options options;
    options.prefill = options.decode = pairs;
    options.worker_flags = {"--transport", joint.transport};
    options.prefill_flags = std::move(prefill_flags);
    options.prefill_flags.insert(options.prefill_flags.end(), {"--device", joint.prefill_device});
    options.decode_flags = {"--device", joint.decode_device};
    cluster_ = std::make_unique<ProcessCluster>(options);
    ASSERT_TRUE(cluster_->WaitReady()) << cluster_->Logs();
  }
  bool fast() const { return GetParam().prefill_device != "cpu"; }

  static v1::ChatRequest Ask(const std::string& content, const std::string& preset) {
    v1::ChatRequest request;
    v1::Message* message = request.mutable_messages()->add_messages();
    message->set_role("user");
    message->set_content(content);
    request.mutable_compression()->set_preset(preset);
    request.mutable_sampling()->set_temperature(0);
    request.mutable_stopping()->set_max_tokens(16);
    return request;
  }
  static std::string LongQuestion(int characters) {
    return absl::StrCat(LongDocument(characters, {{kKey, kValue}}, 1), "\n", Question(kKey));
  }
  grpc::Status Chat(const v1::ChatRequest& request, v1::ChatResponse* response) {
    grpc::ClientContext context;
    context.set_deadline(absl::ToChronoTime(absl::Now() + kPatience * absl::Seconds(60)));
    return cluster_->inference().Chat(&context, request, response);
  }
  // The worker of that role whose gauge is above 0.
  std::string Busy(const std::string& role, const std::string& metric,
                   const std::vector<std::string>& labels) {
    for (int i = 0; i < 2; ++i) {
      const std::string name = absl::StrCat(role, i);
      if (cluster_->Metric(name, metric, labels) > 0) return name;
    }
    return "";
  }
  bool Soon(const std::function<bool()>& holds) {
    const absl::Time end = absl::Now() + kPatience * absl::Seconds(30);
    while (absl::Now() < end) {
      if (holds()) return true;
      absl::SleepFor(absl::Milliseconds(1));
    }
    return false;
  }
  // Kills a worker of that role while it has a part in a hand-off that is not through: every request is
  // answered through the others, and nothing is left behind.
  void DiesMidTransfer(const std::string& role, const std::string& metric,
                       const std::vector<std::string>& labels) {
    Up(2);
    const v1::ChatRequest request = Ask(LongQuestion(fast() ? 100000 : 16000), "full");
    std::vector<grpc::Status> statuses(fast() ? 12 : 2);
    std::vector<v1::ChatResponse> responses(statuses.size());
    std::vector<std::thread> clients;
    // Again and again until the moment has come: connections take their time, hand-offs do not.
    std::atomic<bool> enough{false};
    for (size_t i = 0; i < statuses.size(); ++i)
      clients.emplace_back([&, i] {
        do {
          responses[i].Clear();
          statuses[i] = Chat(request, &responses[i]);
        } while (statuses[i].ok() && !enough);
      });
    std::string victim;
    const bool caught = Soon([&] {
      if (!Busy("decode", "sluice_kv_blocks", {"state=\"leased\""}).empty())
        victim = Busy(role, metric, labels);
      return !victim.empty();
    });
    enough = true;
    if (caught) cluster_->Kill(victim, SIGKILL);
    for (std::thread& client : clients) client.join();
    ASSERT_TRUE(caught);
    int most_attempts = 0;
    for (size_t i = 0; i < statuses.size(); ++i) {
      ASSERT_TRUE(statuses[i].ok()) << statuses[i].error_message();
      EXPECT_THAT(responses[i].text(), HasSubstr(kValue));
      most_attempts = std::max<int>(most_attempts, responses[i].done().attempts());
    }
    EXPECT_GT(most_attempts, 1);
    for (const char* name : {"prefill0", "prefill1", "decode0", "decode1"}) {
      if (name == victim) continue;
      if (name[0] == 'd') EXPECT_TRUE(cluster_->WaitPagesFree(name)) << name;
      EXPECT_TRUE(Soon([&] {
        return cluster_->Metric(name, "sluice_kv_ring_slots", {"state=\"quarantined\""}) == 0;
      })) << name;
    }
    cluster_->Start(victim);
    ASSERT_TRUE(cluster_->WaitReady()) << cluster_->Logs();
    for (int i = 0; i < 4; ++i) {  // over each pair
      v1::ChatResponse response;
      const grpc::Status status = Chat(Ask(LongQuestion(3000), "full"), &response);
      EXPECT_TRUE(status.ok()) << status.error_message();
      EXPECT_THAT(response.text(), HasSubstr(kValue));
    }
    EXPECT_TRUE(cluster_->WaitPagesFree("decode0"));
    EXPECT_TRUE(cluster_->WaitPagesFree("decode1"));
  }

  static constexpr char kKey[] = "quiet-harbor", kValue[] = "4718293";
  std::unique_ptr<ProcessCluster> cluster_;
};

TEST_P(TransportCluster, CarriesAConversation) {
  Up(1);
  grpc::ClientContext context;
  v1::Session session;
  ASSERT_TRUE(cluster_->sessions().CreateSession(&context, {}, &session).ok());
  const std::vector<std::pair<std::string, std::string>> facts = {
      {"quiet-harbor", "4718293"}, {"amber-lantern", "9046157"}, {"frozen-meadow", "3382751"}};
  int prompt = 0;
  for (int turn = 0; turn < 3; ++turn) {
    // 124,000 characters are nearly all of the model's context.
    std::string content = Question(facts[turn].first);
    if (turn == 0) content = absl::StrCat(LongDocument(fast() ? 124000 : 8000, facts, 1), "\n", content);
    v1::ChatRequest request = Ask(content, "sluice-mt");
    v1::Message message = request.messages().messages(0);
    request.mutable_session_turn()->set_session_id(session.id());
    *request.mutable_session_turn()->add_new_messages() = message;
    request.mutable_compression()->set_budget_tokens(512);
    v1::ChatResponse response;
    const grpc::Status status = Chat(request, &response);
    ASSERT_TRUE(status.ok()) << status.error_message();
    EXPECT_THAT(response.text(), HasSubstr(facts[turn].second)) << "turn " << turn;
    EXPECT_GT(response.done().compression().wire_bytes(), 0u);
    prompt = response.done().usage().prompt_tokens();
  }
  if (fast()) EXPECT_GT(prompt, 32000);
  EXPECT_TRUE(cluster_->WaitPagesFree("decode0"));
  EXPECT_EQ(cluster_->Metric("decode0", "sluice_kv_integrity_mismatch_total", {}), 0);
  EXPECT_GT(cluster_->Metric("prefill0", "sluice_kv_transport_probe_bytes_per_second",
                             {absl::StrCat("\"", GetParam().transport, "\"")}),
            0);
}

TEST_P(TransportCluster, PrefillDiesMidTransfer) {
  DiesMidTransfer("prefill", "sluice_requests_in_flight", {"stage=\"prefill\""});
}

TEST_P(TransportCluster, DecodeDiesMidTransfer) {
  DiesMidTransfer("decode", "sluice_kv_blocks", {"state=\"leased\""});
}

TEST_P(TransportCluster, BelowTheFloorPrefillIsNotReady) {
  Up(1, {"--min-transport-rate", "1048576"});  // more than there is
  EXPECT_EQ(cluster_->Metric("prefill0", "sluice_ready", {}), 1);
  v1::ChatRequest request = Ask(LongQuestion(3000), "full");
  v1::ChatResponse response;
  EXPECT_FALSE(Chat(request, &response).ok());
  EXPECT_TRUE(Soon([&] { return cluster_->Metric("prefill0", "sluice_ready", {}) == 0; }));
  EXPECT_GT(cluster_->Metric("prefill0", "sluice_kv_transport_probe_bytes_per_second",
                             {absl::StrCat("\"", GetParam().transport, "\"")}),
            0);
  EXPECT_TRUE(cluster_->WaitPagesFree("decode0"));
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
