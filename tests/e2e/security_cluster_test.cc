// Processes with TLS on every listener and keys: who is served, what is shared, what abuse costs.
#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <fstream>
#include <thread>

#include "absl/strings/str_cat.h"
#include "common/auth/api_keys.h"
#include "common/rpc/connection_gate.h"
#include "common/rpc/status_codec.h"
#include "sluice/internal/v1/worker.grpc.pb.h"
#include "tests/support/long_document.h"
#include "tests/support/process_cluster.h"
#include "tests/support/temp_dir.h"
#include "tests/support/test_ca.h"

namespace sluice {
namespace {

using grpc::StatusCode;
using testing::HasSubstr;
using testing::Not;

constexpr char kMarker[] = "quixoticmarker";

// Of a process, in MB.
double ResidentMb(pid_t pid) {
  std::ifstream file(absl::StrCat("/proc/", pid, "/statm"));
  int64_t total = 0, resident = 0;
  file >> total >> resident;
  return static_cast<double>(resident) * static_cast<double>(sysconf(_SC_PAGESIZE)) / (1 << 20);
}

class SecurityCluster : public testing::Test {
 protected:
  SecurityCluster() : public_ca_(dir_.path(), "public-ca"), internal_ca_(dir_.path(), "internal-ca") {
    public_ca_.Issue("router");
    internal_ca_.Issue("inside");
    alice_ = Issue("alice", false);
    bob_ = Issue("bob", false);
    operator_ = Issue("ops", true);
  }

  std::vector<std::string> InternalFlags() const {
    return {"--internal-tls-cert",      internal_ca_.Crt("inside"), "--internal-tls-key",
            internal_ca_.Key("inside"), "--internal-tls-ca",        internal_ca_.path()};
  }
  void Start(const std::vector<std::string>& router_flags = {}) {
    ProcessCluster::Options options;
    options.tls = ClientTls(public_ca_, "");
    options.admin_key = operator_;
    options.worker_flags = InternalFlags();
    options.router_flags = InternalFlags();
    for (const std::string& flag :
         {std::string("--tls-cert"), public_ca_.Crt("router"), std::string("--tls-key"),
          public_ca_.Key("router"), std::string("--api-keys"), keys_path()}) {
      options.router_flags.push_back(flag);
    }
    options.router_flags.insert(options.router_flags.end(), router_flags.begin(), router_flags.end());
    cluster_ = std::make_unique<ProcessCluster>(options);
    ASSERT_TRUE(cluster_->WaitReady()) << cluster_->Logs();
  }
  void TearDown() override {
    if (HasFailure() && cluster_ != nullptr) std::fprintf(stderr, "%s\n", cluster_->Logs().c_str());
  }

  static std::shared_ptr<Tls> ClientTls(const TestCa& ca, const std::string& name) {
    TlsFiles files;
    files.ca = {ca.path(), "--ca"};
    if (!name.empty()) {
      files.cert = {ca.Crt(name), "--cert"};
      files.key = {ca.Key(name), "--key"};
    }
    return *Tls::Open(files, TlsUse::kClient);
  }
  std::string keys_path() const { return dir_.path() + "/keys.json"; }
  std::string Issue(const std::string& owner, bool admin) {
    ApiKey key;
    key.owner = owner;
    key.admin = admin;
    const std::string secret = IssueKey(absl::Now(), &key);
    keys_.push_back(key);
    EXPECT_TRUE(WriteApiKeys(keys_path(), keys_).ok());
    return secret;
  }
  static void Show(const std::string& key, grpc::ClientContext* context) {
    if (!key.empty()) context->AddMetadata("authorization", "Bearer " + key);
    context->set_deadline(absl::ToChronoTime(absl::Now() + kPatience * absl::Seconds(60)));
  }
  std::string NewSession(const std::string& key) {
    grpc::ClientContext context;
    Show(key, &context);
    v1::Session session;
    const grpc::Status status = cluster_->sessions().CreateSession(&context, {}, &session);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return session.id();
  }
  grpc::Status Chat(const std::string& key, const v1::ChatRequest& request, v1::ChatResponse* response) {
    grpc::ClientContext context;
    Show(key, &context);
    return cluster_->inference().Chat(&context, request, response);
  }
  static v1::ChatRequest Ask(const std::string& content) {
    v1::ChatRequest request;
    v1::Message* message = request.mutable_messages()->add_messages();
    message->set_role("user");
    message->set_content(content);
    request.mutable_stopping()->set_max_tokens(4);
    return request;
  }
  // How much of `document` a new session of the key's owner finds computed.
  int CachedTokens(const std::string& key, const std::string& document, const std::string& salt = "") {
    v1::ChatRequest request;
    request.mutable_session_turn()->set_session_id(NewSession(key));
    v1::Message* message = request.mutable_session_turn()->add_new_messages();
    message->set_role("user");
    message->set_content(document);
    request.mutable_stopping()->set_max_tokens(4);
    request.mutable_compression()->set_preset("sluice-mt");
    request.set_cache_salt(salt);
    v1::ChatResponse response;
    const grpc::Status status = Chat(key, request, &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return response.done().usage().cached_tokens();
  }

  TempDir dir_;
  TestCa public_ca_, internal_ca_;
  std::vector<ApiKey> keys_;
  std::string alice_, bob_, operator_;
  std::unique_ptr<ProcessCluster> cluster_;
};

// The names that reflection lists.
std::string Reflected(const std::shared_ptr<grpc::Channel>& channel) {
  grpc::GenericStub stub(channel);
  grpc::ClientContext context;
  grpc::CompletionQueue queue;
  auto call =
      stub.PrepareCall(&context, "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", &queue);
  const auto next = [&queue] {
    void* tag;
    bool ok = false;
    return queue.Next(&tag, &ok) && ok;
  };
  call->StartCall(nullptr);
  if (!next()) return "";
  const grpc::Slice list_services(std::string("\x3a\x00", 2));
  call->Write(grpc::ByteBuffer(&list_services, 1), nullptr);
  if (!next()) return "";
  grpc::ByteBuffer reply;
  call->Read(&reply, nullptr);
  std::string text;
  if (next()) {
    std::vector<grpc::Slice> slices;
    if (reply.Dump(&slices).ok()) {
      for (const grpc::Slice& slice : slices)
        text.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
    }
  }
  context.TryCancel();
  grpc::Status status;
  call->Finish(&status, nullptr);
  next();
  return text;
}

TEST_F(SecurityCluster, OwnersShareNothingAndPromptsStayOutOfTheLogs) {
  Start({"--reflection"});
  const std::string document = absl::StrCat(kMarker, " ", LongDocument(3000, {}, 1));
  EXPECT_EQ(CachedTokens(alice_, document), 0);
  EXPECT_GT(CachedTokens(alice_, document), 256) << "an owner shares with himself";
  EXPECT_EQ(CachedTokens(bob_, document), 0) << "with nobody else";
  EXPECT_EQ(CachedTokens(alice_, document, "salt"), 0);
  EXPECT_GT(CachedTokens(alice_, document, "salt"), 256);
  EXPECT_GT(CachedTokens(bob_, document), 256);

  v1::ChatResponse reply;
  EXPECT_EQ(Chat("", Ask(kMarker), &reply).error_code(), StatusCode::UNAUTHENTICATED);
  v1::ChatRequest bad = Ask(kMarker);
  bad.mutable_sampling()->set_temperature(9);
  EXPECT_EQ(Chat(alice_, bad, &reply).error_code(), StatusCode::INVALID_ARGUMENT);
  EXPECT_TRUE(Chat(alice_, Ask(kMarker), &reply).ok());
  const std::string logs = cluster_->Logs();
  EXPECT_THAT(logs, HasSubstr("accepted request="));
  EXPECT_THAT(logs, Not(HasSubstr(kMarker)));
  EXPECT_THAT(logs, Not(HasSubstr(alice_.substr(alice_.size() - 64)))) << "nor keys";

  // Internal services are not on the public port, whoever asks.
  const std::string names = Reflected(cluster_->channel());
  EXPECT_THAT(names, HasSubstr("sluice.v1.Inference"));
  EXPECT_THAT(names, Not(HasSubstr("internal")));
  EXPECT_THAT(names, Not(HasSubstr("Admin")));
  grpc::ClientContext forget_context, admin_context;
  Show(operator_, &forget_context);
  Show(operator_, &admin_context);
  internal::v1::ForgetResponse forgotten;
  EXPECT_EQ(internal::v1::PrefillWorker::NewStub(cluster_->channel())
                ->Forget(&forget_context, {}, &forgotten)
                .error_code(),
            StatusCode::UNIMPLEMENTED);
  v1::ListWorkersResponse workers;
  EXPECT_EQ(v1::Admin::NewStub(cluster_->channel())->ListWorkers(&admin_context, {}, &workers).error_code(),
            StatusCode::UNIMPLEMENTED);
}

TEST_F(SecurityCluster, OnlyProcessesWithACertificateGetInsideAndNewOnesTakeOver) {
  Start();
  const auto register_with = [&](const Tls* tls) {
    grpc::ClientContext context;
    Show("", &context);
    auto stub = internal::v1::WorkerRegistry::NewStub(OpenChannel(cluster_->internal_address(), tls));
    auto stream = stub->Register(&context);
    internal::v1::WorkerReport report;
    report.set_role("neither");
    stream->Write(report);
    stream->WritesDone();
    return stream->Finish().error_code();
  };
  public_ca_.Issue("stranger");
  internal_ca_.Issue("known");
  EXPECT_EQ(register_with(nullptr), StatusCode::UNAVAILABLE);
  EXPECT_EQ(register_with(ClientTls(internal_ca_, "").get()), StatusCode::UNAVAILABLE);
  const auto stranger = [&] {
    TlsFiles files;
    files.ca = {internal_ca_.path(), "--ca"};
    files.cert = {public_ca_.Crt("stranger"), "--cert"};
    files.key = {public_ca_.Key("stranger"), "--key"};
    return *Tls::Open(files, TlsUse::kMutual);
  }();
  EXPECT_EQ(register_with(stranger.get()), StatusCode::UNAVAILABLE);
  EXPECT_EQ(register_with(ClientTls(internal_ca_, "known").get()), StatusCode::INVALID_ARGUMENT)
      << "it got in, and was told what is wrong with its report";

  // New certificates, at work without a restart: the metric tells, and a worker that comes back gets in.
  const auto expiry = [&](const std::string& process, const char* kind) {
    return cluster_->Metric(process, "sluice_certificate_expiry_timestamp_seconds",
                            {absl::StrCat("kind=\"", kind, "\"")});
  };
  const double before = expiry("router", "internal");
  EXPECT_NEAR(before, static_cast<double>(absl::ToUnixSeconds(absl::Now() + absl::Hours(24))), 300);
  internal_ca_.Issue("inside", absl::Hours(40));
  public_ca_.Issue("router", absl::Hours(40));
  const absl::Time until = absl::Now() + kPatience * absl::Seconds(15);
  const auto taken = [&] {
    return expiry("router", "internal") > before + 3600 && expiry("router", "public") > before + 3600 &&
           expiry("prefill0", "internal") > before + 3600 && expiry("decode0", "internal") > before + 3600;
  };
  while (!taken() && absl::Now() < until) absl::SleepFor(absl::Milliseconds(50));
  EXPECT_TRUE(taken());
  cluster_->Kill("decode0", SIGKILL);
  cluster_->Start("decode0");
  ASSERT_TRUE(cluster_->WaitReady());
  v1::ChatResponse reply;
  const grpc::Status status = Chat(alice_, Ask("hello"), &reply);
  EXPECT_TRUE(status.ok()) << status.error_message();
}

TEST_F(SecurityCluster, MessagesOf200MbAreRefusedWithinTheMemoryAllowed) {
  Start({"--max-buffered", "128"});
  v1::ChatResponse reply;
  ASSERT_TRUE(Chat(alice_, Ask("hello"), &reply).ok());
  const double before = ResidentMb(cluster_->pid("router"));
  double most = before;
  std::atomic<int> refused{0}, others{0};
  std::atomic<bool> over{false};
  std::vector<std::thread> senders;
  const auto tls = ClientTls(public_ca_, "");
  const std::string text(200 << 20, 'x');
  for (int i = 0; i < 3; ++i) {
    senders.emplace_back([&] {
      grpc::ChannelArguments arguments;
      arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
      arguments.SetMaxSendMessageSize(-1);
      auto stub = v1::Inference::NewStub(OpenChannel(cluster_->router_address(), tls.get(), arguments));
      grpc::ClientContext context;
      Show(alice_, &context);
      v1::ChatResponse response;
      const grpc::Status status = stub->Chat(&context, Ask(text), &response);
      (status.error_code() == StatusCode::RESOURCE_EXHAUSTED ? refused : others) += 1;
      if (status.error_code() != StatusCode::RESOURCE_EXHAUSTED)
        std::fprintf(stderr, "a large message: %d %s\n", status.error_code(), status.error_message().c_str());
    });
  }
  std::thread watch([&] {
    while (!over) {
      most = std::max(most, ResidentMb(cluster_->pid("router")));
      absl::SleepFor(absl::Milliseconds(2));
    }
  });
  const grpc::Status meanwhile = Chat(bob_, Ask("hello"), &reply);
  for (std::thread& sender : senders) sender.join();
  over = true;
  watch.join();
  EXPECT_TRUE(meanwhile.ok()) << meanwhile.error_message();
  EXPECT_EQ(refused, 3);
  EXPECT_LT(most - before, 400) << "of 600 MB sent";
  std::fprintf(stderr, "200 MB messages: router grew by %.0f MB at most, from %.0f\n", most - before, before);
  EXPECT_TRUE(Chat(bob_, Ask("hello"), &reply).ok());
}

// Connections that never finish their handshake, from another address than the others'.
TEST_F(SecurityCluster, TenThousandHalfOpenConnectionsTakeNoRoomFromOthers) {
  constexpr int kAttempts = 10000, kOfAHost = 1500;
  if (RaiseFileLimit() < kAttempts + 500) GTEST_SKIP() << "this process may not open 10,000 connections";
  Start({"--max-connections-per-host", absl::StrCat(kOfAHost)});
  v1::ChatResponse reply;
  ASSERT_TRUE(Chat(alice_, Ask("hello"), &reply).ok());
  const double before = ResidentMb(cluster_->pid("router"));
  const std::string& address = cluster_->router_address();
  sockaddr_in from{}, to{};
  from.sin_family = to.sin_family = AF_INET;
  inet_pton(AF_INET, "127.0.0.2", &from.sin_addr);
  inet_pton(AF_INET, "127.0.0.1", &to.sin_addr);
  to.sin_port = htons(static_cast<uint16_t>(std::stoi(address.substr(address.rfind(':') + 1))));
  std::vector<int> open;
  for (int i = 0; i < kAttempts; ++i) {
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    ASSERT_GE(fd, 0) << i;
    open.push_back(fd);
    ASSERT_EQ(bind(fd, reinterpret_cast<sockaddr*>(&from), sizeof(from)), 0) << i;
    if (connect(fd, reinterpret_cast<sockaddr*>(&to), sizeof(to)) == 0) send(fd, "\x16\x03", 2, MSG_NOSIGNAL);
  }
  const grpc::Status meanwhile = Chat(bob_, Ask("hello"), &reply);
  EXPECT_TRUE(meanwhile.ok()) << meanwhile.error_message();
  const double grown = ResidentMb(cluster_->pid("router")) - before;
  EXPECT_LT(grown, 200);
  std::fprintf(stderr, "%d half-open connections: router grew by %.0f MB, from %.0f\n", kAttempts, grown,
               before);
  EXPECT_THAT(cluster_->Logs(), HasSubstr("too many connections of this host"));
  // And those that were let in are closed in time: the server hangs up.
  const absl::Time until = absl::Now() + kPatience * absl::Seconds(20);
  size_t closed = 0;
  for (int fd : open) {
    char byte;
    while (recv(fd, &byte, 1, MSG_DONTWAIT) < 0 && errno == EAGAIN && absl::Now() < until)
      absl::SleepFor(absl::Milliseconds(20));
    closed += recv(fd, &byte, 1, MSG_DONTWAIT) == 0 || errno == ECONNRESET;
    close(fd);
  }
  EXPECT_EQ(closed, open.size());
}

// Requests whose headers are there and whose message never comes.
TEST_F(SecurityCluster, TenThousandHalfOpenRequestsLeaveOthersServed) {
  constexpr int kConnections = 10, kRequests = 1000;
  Start();
  v1::ChatResponse reply;
  ASSERT_TRUE(Chat(alice_, Ask("hello"), &reply).ok());
  const double before = ResidentMb(cluster_->pid("router"));
  const auto tls = ClientTls(public_ca_, "");
  struct HalfOpen {
    grpc::ClientContext context;
    std::unique_ptr<grpc::GenericClientAsyncReaderWriter> call;
    grpc::Status status;
  };
  grpc::CompletionQueue queue;
  std::vector<std::unique_ptr<HalfOpen>> calls;
  const auto next = [&queue] {
    void* tag;
    bool ok = false;
    return queue.Next(&tag, &ok) && ok;
  };
  int sent = 0;
  for (int c = 0; c < kConnections; ++c) {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    grpc::GenericStub stub(OpenChannel(cluster_->router_address(), tls.get(), arguments));
    for (int i = 0; i < kRequests; ++i) {
      calls.push_back(std::make_unique<HalfOpen>());
      HalfOpen* call = calls.back().get();
      call->context.set_wait_for_ready(true);
      call->call = stub.PrepareCall(&call->context, "/sluice.v1.Inference/Chat", &queue);
      call->call->StartCall(nullptr);
    }
    for (int i = 0; i < kRequests; ++i) sent += next();
  }
  EXPECT_EQ(sent, kConnections * kRequests);
  const grpc::Status meanwhile = Chat(bob_, Ask("hello"), &reply);
  EXPECT_TRUE(meanwhile.ok()) << meanwhile.error_message();
  const double grown = ResidentMb(cluster_->pid("router")) - before;
  EXPECT_LT(grown, 500);
  std::fprintf(stderr, "%d half-open requests: router grew by %.0f MB, from %.0f\n", sent, grown, before);
  for (const auto& call : calls) call->context.TryCancel();
  for (const auto& call : calls) call->call->Finish(&call->status, nullptr);
  for (size_t i = 0; i < calls.size(); ++i) next();
  EXPECT_TRUE(Chat(bob_, Ask("hello"), &reply).ok());
}

}  // namespace
}  // namespace sluice
