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
  void Up(int pairs, std::vector<std::string> prefill_flags = {},
          std::vector<std::string> decode_flags = {}) {
    const Joint& joint = GetParam();
    ProcessCluster::Options options;
    options.prefill = options.decode = pairs;
    options.worker_flags = {"--transport", joint.transport};
    options.prefill_flags = std::move(prefill_flags);
    options.prefill_flags.insert(options.prefill_flags.end(), {"--device", joint.prefill_device});
    options.decode_flags = std::move(decode_flags);
    options.decode_flags.insert(options.decode_flags.end(), {"--device", joint.decode_device});
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
  // Of the last probe.
  double Rate() {
    return cluster_->Metric("prefill0", "sluice_kv_transport_probe_bytes_per_second",
                            {absl::StrCat("\"", GetParam().transport, "\"")});
  }
  bool Soon(const std::function<bool()>& holds) {
    const absl::Time end = absl::Now() + kPatience * absl::Seconds(30);
    while (absl::Now() < end) {
      if (holds()) return true;
      absl::SleepFor(absl::Milliseconds(1));
    }
    return false;
  }
  // One hand-off of many small slabs, two at a time, is under way for most of a second.
  static std::vector<std::string> SlowHandoffs() { return {"--slot-kib", "64", "--ring-slots", "2"}; }
  // Stops a worker of that role, so that a hand-off that it has a part in stands still in the middle: a
  // second look at the other end, which still runs, finds it there. Empty: it was through already, and the
  // worker goes on.
  std::string StopMidTransfer(const std::string& role) {
    const std::vector<std::string> leased = {"state=\"leased\""}, sending = {"stage=\"transfer\""};
    const std::string decode = Busy("decode", "sluice_kv_blocks", leased);
    const std::string prefill = Busy("prefill", "sluice_requests_in_flight", sending);
    if (decode.empty() || prefill.empty()) return "";
    const std::string victim = role == "decode" ? decode : prefill;
    cluster_->Signal(victim, SIGSTOP);
    absl::SleepFor(absl::Milliseconds(400));  // gauges are written every 100 ms; deadlines are 2 s and more
    const double still = role == "decode" ? cluster_->Metric(prefill, "sluice_requests_in_flight", sending)
                                          : cluster_->Metric(decode, "sluice_kv_blocks", leased);
    if (still > 0) return victim;
    cluster_->Signal(victim, SIGCONT);
    return "";
  }
  // Kills a worker of that role in the middle of a hand-off: the request is answered through the others, and
  // nothing is left behind.
  void DiesMidTransfer(const std::string& role) {
    Up(2, SlowHandoffs(), SlowHandoffs());
    const v1::ChatRequest request = Ask(LongQuestion(fast() ? 100000 : 16000), "full");
    grpc::Status asked;
    v1::ChatResponse answer;
    // One at a time: whatever hand-off there is, is this request's. Again until the moment has come.
    std::atomic<bool> enough{false};
    std::thread client([&] {
      do {
        answer.Clear();
        asked = Chat(request, &answer);
      } while (asked.ok() && !enough);
    });
    std::string victim;
    const bool caught = Soon([&] {
      victim = StopMidTransfer(role);
      return !victim.empty();
    });
    enough = true;
    if (caught) cluster_->Kill(victim, SIGKILL);
    client.join();
    ASSERT_TRUE(caught);
    ASSERT_TRUE(asked.ok()) << asked.error_message();
    EXPECT_THAT(answer.text(), HasSubstr(kValue));
    EXPECT_GT(answer.done().attempts(), 1);
    for (const char* name : {"prefill0", "prefill1", "decode0", "decode1"}) {
      if (name == victim) continue;
      if (name[0] == 'd') {
        EXPECT_TRUE(cluster_->WaitPagesFree(name)) << name;
      }
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
  if (fast()) {
    EXPECT_GT(prompt, 32000);
  }
  EXPECT_TRUE(cluster_->WaitPagesFree("decode0"));
  EXPECT_EQ(cluster_->Metric("decode0", "sluice_kv_integrity_mismatch_total", {}), 0);
  EXPECT_GT(Rate(), 0);
}

TEST_P(TransportCluster, PrefillDiesMidTransfer) { DiesMidTransfer("prefill"); }

TEST_P(TransportCluster, DecodeDiesMidTransfer) { DiesMidTransfer("decode"); }

TEST_P(TransportCluster, PrefillConnectsBeforeAPromptComes) {
  Up(1);
  EXPECT_TRUE(Soon([&] { return Rate() > 0; }));
}

TEST_P(TransportCluster, BelowTheFloorPrefillIsNotReady) {
  Up(1, {"--min-transport-rate", "1048576"});  // more than there is
  EXPECT_TRUE(Soon([&] { return Rate() > 0 && cluster_->Metric("prefill0", "sluice_ready", {}) == 0; }));
  v1::ChatRequest request = Ask(LongQuestion(3000), "full");
  v1::ChatResponse response;
  EXPECT_FALSE(Chat(request, &response).ok());
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
