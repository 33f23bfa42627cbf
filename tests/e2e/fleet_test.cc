// Several workers and routers under load: drained, killed and started again, nobody who asks for an answer
// notices.
#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <atomic>
#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tests/support/process_cluster.h"
#ifdef SLUICE_TEST_POSTGRES
#include "tests/support/postgres_server.h"
#endif

namespace sluice {
namespace {

// What every session is asked, in this order; at temperature 0 every session gets the same answers, whoever
// gives them.
constexpr const char* kQuestions[] = {"Hello!", "Who are you?", "Tell me more."};
constexpr int kTurns = 3;

struct Answer {
  std::string text;
  std::string turn_id;
  grpc::Status status;
};

// Conversations one after the other, each turn on the router that answered last, until Stop.
class Talker {
 public:
  Talker(ProcessCluster* cluster, int routers, int first)
      : cluster_(cluster), routers_(routers), at_(first % routers) {}
  void Start() {
    thread_ = std::thread([this] {
      while (!stop_) Converse();
    });
  }
  void Stop() {
    stop_ = true;
    if (thread_.joinable()) thread_.join();
  }
  ~Talker() { Stop(); }

  // One session from its first turn to its last, or to Stop.
  void Converse() {
    const std::string id = Create();
    if (id.empty()) return;
    std::vector<Answer>& answers = sessions_[id];
    while (answers.size() < kTurns && !stop_) {
      Answer answer = Ask(id, answers.empty() ? "" : answers.back().turn_id, kQuestions[answers.size()]);
      if (answer.status.ok()) {
        answers.push_back(std::move(answer));
        ++answered_;
        continue;
      }
      ++failures_;
      if (stop_) return;
      failed_with_ =
          absl::StrCat(failed_with_, answer.status.error_code(), " ", answer.status.error_message(), "\n");
      at_ = (at_ + 1) % routers_;
      // Committed, and only its answer was lost?
      const v1::GetSessionResponse stored = Get(id);
      if (stored.turns_size() == static_cast<int>(answers.size()) + 1) {
        const v1::Turn& turn = stored.turns(stored.turns_size() - 1);
        EXPECT_TRUE(absl::StartsWith(turn.reply(), answer.text))
            << turn.reply() << " against " << answer.text;
        answers.push_back({turn.reply(), turn.id(), grpc::Status::OK});
      }
    }
  }

  v1::GetSessionResponse Get(const std::string& id) {
    v1::GetSessionRequest request;
    request.set_session_id(id);
    for (int i = 0; i < 50; ++i) {
      grpc::ClientContext context;
      SetDeadline(&context);
      v1::GetSessionResponse response;
      if (cluster_->sessions(at_).GetSession(&context, request, &response).ok()) return response;
      at_ = (at_ + 1) % routers_;
      absl::SleepFor(absl::Milliseconds(100));
    }
    ADD_FAILURE() << "no router tells of session " << id;
    return {};
  }

  // By session; its own thread's until it has stopped.
  const std::map<std::string, std::vector<Answer>>& sessions() const { return sessions_; }
  int answered() const { return answered_; }
  int failures() const { return failures_; }
  const std::string& failed_with() const { return failed_with_; }

 private:
  static void SetDeadline(grpc::ClientContext* context) {
    context->set_deadline(absl::ToChronoTime(absl::Now() + kPatience * absl::Seconds(60)));
  }
  std::string Create() {
    for (int i = 0; i < 50; ++i) {
      grpc::ClientContext context;
      SetDeadline(&context);
      v1::Session session;
      if (cluster_->sessions(at_).CreateSession(&context, {}, &session).ok()) return session.id();
      at_ = (at_ + 1) % routers_;
      absl::SleepFor(absl::Milliseconds(100));
    }
    ADD_FAILURE() << "no router makes a session";
    return "";
  }
  Answer Ask(const std::string& session_id, const std::string& parent, const std::string& question) {
    v1::ChatRequest request;
    request.mutable_session_turn()->set_session_id(session_id);
    request.mutable_session_turn()->set_parent_turn_id(parent);
    v1::Message* message = request.mutable_session_turn()->add_new_messages();
    message->set_role("user");
    message->set_content(question);
    request.mutable_sampling()->set_temperature(0);
    request.mutable_stopping()->set_max_tokens(40);
    request.mutable_stopping()->set_ignore_eos(true);
    grpc::ClientContext context;
    SetDeadline(&context);
    Answer answer;
    auto reader = cluster_->inference(at_).ChatStream(&context, request);
    uint64_t seq = 0;
    for (v1::ChatEvent event; reader->Read(&event);) {
      EXPECT_EQ(event.seq(), seq++);
      if (event.has_started()) answer.turn_id = event.started().turn_id();
      if (event.has_delta()) answer.text += event.delta().text();
    }
    answer.status = reader->Finish();
    return answer;
  }

  ProcessCluster* const cluster_;
  const int routers_;
  int at_;
  std::map<std::string, std::vector<Answer>> sessions_;
  std::string failed_with_;
  std::atomic<int> answered_{0}, failures_{0};
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

class FleetTest : public testing::Test {
 protected:
  void StartFleet(ProcessCluster::Options options) {
    options.prefill = options.decode = 2;
    options.stop_seconds = 20;
    cluster_ = std::make_unique<ProcessCluster>(options);
    ASSERT_TRUE(cluster_->WaitReady()) << cluster_->Logs();
    Talker quiet(cluster_.get(), 1, 0);
    quiet.Converse();
    ASSERT_EQ(quiet.answered(), kTurns) << quiet.failed_with();
    expected_ = quiet.sessions().begin()->second;
    for (int i = 0; i < 3; ++i) {
      talkers_.push_back(std::make_unique<Talker>(cluster_.get(), options.routers, i));
      talkers_.back()->Start();
    }
    AwaitAnswers(3);
  }
  void TearDown() override {
    talkers_.clear();
    if (HasFailure() && cluster_ != nullptr) std::fprintf(stderr, "%s\n", cluster_->Logs().c_str());
  }
  int Answered() const {
    int sum = 0;
    for (const auto& talker : talkers_) sum += talker->answered();
    return sum;
  }
  int Failures() const {
    int sum = 0;
    for (const auto& talker : talkers_) sum += talker->failures();
    return sum;
  }
  // So many more.
  void AwaitAnswers(int more) {
    const int before = Answered();
    const absl::Time until = absl::Now() + kPatience * absl::Seconds(60);
    while (Answered() < before + more && absl::Now() < until) absl::SleepFor(absl::Milliseconds(10));
    ASSERT_GE(Answered(), before + more);
  }
  void KillAndStart(const std::string& process, int signal) {
    cluster_->Kill(process, signal);
    AwaitAnswers(2);
    cluster_->Start(process);
    ASSERT_TRUE(cluster_->WaitReady()) << cluster_->Logs();
    AwaitAnswers(2);
  }
  // Every turn that a client knows of is stored once, in order, with the text that the client saw, which is
  // the one that a quiet fleet gives.
  void ExpectEveryTurnOnce() {
    for (const auto& talker : talkers_) talker->Stop();
    int sessions = 0;
    for (const auto& talker : talkers_) {
      for (const auto& [id, answers] : talker->sessions()) {
        ++sessions;
        const v1::GetSessionResponse stored = talker->Get(id);
        // The last turn may have been cut off by Stop.
        ASSERT_GE(stored.turns_size(), static_cast<int>(answers.size())) << id;
        for (size_t i = 0; i < answers.size(); ++i) {
          const v1::Turn& turn = stored.turns(static_cast<int>(i));
          EXPECT_EQ(turn.id(), answers[i].turn_id);
          EXPECT_EQ(turn.reply(), answers[i].text);
          EXPECT_EQ(turn.reply(), expected_[i].text) << "turn " << i << " of " << id;
        }
      }
    }
    EXPECT_GT(sessions, 3);
  }

  std::unique_ptr<ProcessCluster> cluster_;
  std::vector<Answer> expected_;
  std::vector<std::unique_ptr<Talker>> talkers_;
};

TEST_F(FleetTest, ARollingDrainOfEveryWorkerReturnsNoError) {
  StartFleet({});
  for (const char* name : {"prefill0", "decode0"}) {  // by the operator
    grpc::ClientContext context;
    v1::DrainRequest request;
    request.set_worker(name);
    auto reader = cluster_->admin().Drain(&context, request);
    v1::DrainProgress progress;
    progress.set_remaining(-1);
    while (reader->Read(&progress)) {
    }
    const grpc::Status status = reader->Finish();
    ASSERT_TRUE(status.ok()) << status.error_message();
    EXPECT_EQ(progress.remaining(), 0);
    AwaitAnswers(2);
    KillAndStart(name, SIGTERM);
  }
  for (const char* name : {"prefill1", "decode1"}) KillAndStart(name, SIGTERM);  // by itself
  ExpectEveryTurnOnce();
  for (const auto& talker : talkers_) EXPECT_EQ(talker->failed_with(), "");
}

#ifdef SLUICE_TEST_POSTGRES
TEST_F(FleetTest, TwoRoutersOverOnePostgresLoseNoTurnAndRepeatNone) {
  absl::StatusOr<std::unique_ptr<PostgresServer>> postgres = PostgresServer::Start();
  if (absl::IsNotFound(postgres.status())) GTEST_SKIP() << postgres.status().message();
  ASSERT_TRUE(postgres.ok()) << postgres.status();
  ProcessCluster::Options options;
  options.routers = 2;
  options.sessions = (*postgres)->FreshUri();
  StartFleet(options);

  KillAndStart("decode0", SIGKILL);
  KillAndStart("prefill0", SIGKILL);
  (*postgres)->Stop(SIGINT);
  absl::SleepFor(absl::Milliseconds(300));
  ASSERT_TRUE((*postgres)->StartAgain().ok());
  AwaitAnswers(6);
  (*postgres)->Stop(SIGQUIT);
  ASSERT_TRUE((*postgres)->StartAgain().ok());
  AwaitAnswers(6);
  EXPECT_EQ(Failures(), 0) << "a worker or PostgreSQL went";

  KillAndStart("router", SIGKILL);
  EXPECT_GT(Failures(), 0) << "nobody was talking to the router that was killed";
  KillAndStart("router1", SIGTERM);
  ExpectEveryTurnOnce();
}
#endif

}  // namespace
}  // namespace sluice
