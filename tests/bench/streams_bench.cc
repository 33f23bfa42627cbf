// How many streams one router process holds over HTTP, what an idle one costs, and what an unrelated short
// request feels of them. The router is a process of its own; workers are fake ones in this process, whose
// "model" says a word when it is told to, so that nothing but the router, gRPC and the loopback interface is
// measured.
//   streams_bench --router build/cpu-release/bin/sluice-router [--idle 10000] [--active 1000] [--rate 2]
//   [--probes 500]
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <cstdio>
#include <fstream>
#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "common/base/mutex.h"
#include "router/served_model.h"
#include "tests/router/fake_workers.h"
#include "tests/router/http/http_client.h"
#include "tests/support/free_port.h"

namespace sluice {
namespace {

// What a request wants of the fake model is in its max_tokens.
constexpr int kIdleTokens = 1001, kActiveTokens = 30000, kProbeTokens = 8;
constexpr int kOpening = 32;  // streams that are being opened at a time
constexpr int kWorkers = 4;   // of each role: a connection carries 4096 streams
constexpr int kFilesBeside = 512;

struct Options {
  std::string router, model = "models/needle-14m";
  int idle = 10000, active = 1000, probes = 500;
  double rate = 2, seconds_to_open = 300;
};

// Of /proc/PID/status: kB, or a count.
int64_t StatusOf(pid_t pid, const std::string& key) {
  std::ifstream in(absl::StrCat("/proc/", pid, "/status"));
  for (std::string line; std::getline(in, line);) {
    if (!absl::StartsWith(line, key + ":")) continue;
    const std::vector<std::string> words = absl::StrSplit(line, absl::ByAnyChar(" \t"), absl::SkipEmpty());
    return std::stoll(words[1]);
  }
  return 0;
}

class RouterProcess {
 public:
  RouterProcess(const Options& options, int connections) {
    std::vector<std::string> args = {options.router,
                                     "--model",
                                     options.model,
                                     "--listen",
                                     At(FreePort()),
                                     "--internal-listen",
                                     At(internal_),
                                     "--admin-listen",
                                     At(FreePort()),
                                     "--metrics-listen",
                                     At(FreePort()),
                                     "--http-listen",
                                     At(http_),
                                     "--http-max-connections",
                                     absl::StrCat(connections + 64),
                                     "--max-in-flight",
                                     absl::StrCat(connections + 64),
                                     "--sessions-db",
                                     "memory",
                                     "--log-level",
                                     "warn",
                                     "--stop-timeout",
                                     "1"};
    pid_ = fork();
    if (pid_ != 0) return;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    std::vector<char*> argv;
    for (std::string& arg : args) argv.push_back(arg.data());
    argv.push_back(nullptr);
    execv(argv[0], argv.data());
    _exit(127);
  }
  ~RouterProcess() {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  pid_t pid() const { return pid_; }
  int internal() const { return internal_; }
  int http() const { return http_; }

  bool AwaitPort(int port) const {
    for (int i = 0; i < 600 && waitpid(pid_, nullptr, WNOHANG) == 0; ++i) {
      if (Listens(port)) return true;
      absl::SleepFor(absl::Milliseconds(100));
    }
    return false;
  }
  // Whether it serves requests in time.
  bool Await() const {
    for (int i = 0; i < 600; ++i, absl::SleepFor(absl::Milliseconds(100))) {
      if (waitpid(pid_, nullptr, WNOHANG) != 0) return false;
      if (!Listens(http_)) continue;
      HttpClient client(http_);
      client.Send(GetText("/health"));
      const std::optional<HttpAnswer> answer = client.Read();
      if (answer.has_value() && answer->code == 200) return true;
    }
    return false;
  }
  static bool Listens(int port) {
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(static_cast<uint16_t>(port));
    const bool yes = connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0;
    close(fd);
    return yes;
  }

 private:
  static std::string At(int port) { return absl::StrCat("127.0.0.1:", port); }
  const int internal_ = FreePort(), http_ = FreePort();
  pid_t pid_ = -1;
};

// Streams that are open and read to nowhere.
class Streams {
 public:
  explicit Streams(int port)
      : port_(port), epoll_(epoll_create1(EPOLL_CLOEXEC)), reader_([this] { Read(); }) {}
  ~Streams() {
    stop_ = true;
    reader_.join();
    for (auto& client : clients_) client->Close();
    close(epoll_);
  }
  // n more, each with its first text. False: not in time.
  bool Open(int n, int max_tokens, absl::Duration within) {
    const absl::Time until = absl::Now() + within;
    const std::string request = PostText(
        "/v1/chat/completions",
        absl::StrCat(R"({"messages": [{"role": "user", "content": "hi"}], "stream": true, "max_tokens": )",
                     max_tokens, "}"));
    const int goal = static_cast<int>(clients_.size()) + n;
    while (begun_ < goal) {
      if (absl::Now() > until) return false;
      if (static_cast<int>(clients_.size()) == goal ||
          static_cast<int>(clients_.size()) - begun_ >= kOpening) {
        absl::SleepFor(absl::Milliseconds(1));
        continue;
      }
      clients_.push_back(std::make_unique<HttpClient>(port_));
      clients_.back()->Send(request);
      epoll_event event{};
      event.events = EPOLLIN;
      const int fd = clients_.back()->fd();
      event.data.u64 = static_cast<uint64_t>(fd) << 32 | (clients_.size() - 1);
      epoll_ctl(epoll_, EPOLL_CTL_ADD, fd, &event);
    }
    return true;
  }
  int64_t bytes() const { return bytes_; }
  int ended() const { return ended_; }

 private:
  void Read() {
    std::vector<epoll_event> events(512);
    std::vector<char> buffer(64 << 10);
    std::vector<bool> seen(1 << 16);
    while (!stop_) {
      const int n = epoll_wait(epoll_, events.data(), static_cast<int>(events.size()), 50);
      for (int i = 0; i < n; ++i) {
        const size_t index = events[i].data.u64 & 0xFFFFFFFF;
        const int fd = static_cast<int>(events[i].data.u64 >> 32);
        const ssize_t got = recv(fd, buffer.data(), buffer.size(), MSG_DONTWAIT);
        if (got > 0) bytes_ += got;
        if (got == 0) {
          epoll_ctl(epoll_, EPOLL_CTL_DEL, fd, nullptr);
          ++ended_;
        }
        if (!seen[index]) ++begun_;
        seen[index] = true;
      }
    }
  }

  const int port_, epoll_;
  std::vector<std::unique_ptr<HttpClient>> clients_;
  std::atomic<bool> stop_{false};
  std::atomic<int> begun_{0}, ended_{0};
  std::atomic<int64_t> bytes_{0};
  std::thread reader_;
};

// Says a first word to everyone, the rest of a short answer at once, and words at a rate to the active.
class Model {
 public:
  Model(FakeWorkers* workers, int32_t word, double rate) : word_(word) {
    workers->SetScript([this](const FakeAttempt& attempt) { Begin(attempt); });
    ticker_ = std::thread([this, rate] {
      for (absl::Time next = absl::Now(); !stop_;) {
        next += absl::Seconds(1 / rate);
        std::vector<FakeAttempt> active;
        {
          MutexLock lock(&mu_);
          active = active_;
        }
        // Spread over the tick, as batches of many workers would be.
        for (size_t i = 0; i < active.size() && !stop_; ++i) {
          Say(&active[i], i);
          if (i % 50 == 49) absl::SleepFor(absl::Seconds(0.5 / rate / (1 + active.size() / 50.0)));
        }
        absl::SleepFor(next - absl::Now());
      }
    });
  }
  ~Model() {
    stop_ = true;
    ticker_.join();
  }
  int64_t said() const { return said_; }

 private:
  void Begin(const FakeAttempt& attempt) {
    const int wanted = attempt.prefill_request.sampling().max_tokens();
    if (wanted == kProbeTokens) return attempt.Serve(std::vector<int32_t>(kProbeTokens, word_), "length");
    attempt.FirstToken(word_);
    attempt.Receiving();
    attempt.HandedOff();
    if (wanted != kActiveTokens) return;
    MutexLock lock(&mu_);
    active_.push_back(attempt);
    index_.push_back(1);
  }
  void Say(FakeAttempt* attempt, size_t i) {
    int index;
    {
      MutexLock lock(&mu_);
      index = index_[i]++;
    }
    attempt->Tokens(index, {word_});
    ++said_;
  }

  const int32_t word_;
  std::atomic<bool> stop_{false};
  std::atomic<int64_t> said_{0};
  Mutex mu_;
  std::vector<FakeAttempt> active_ ABSL_GUARDED_BY(mu_);
  std::vector<int> index_ ABSL_GUARDED_BY(mu_);
  std::thread ticker_;
};

// Milliseconds of short requests, one after the other on one connection.
std::vector<double> Probe(int port, int n) {
  HttpClient client(port);
  const std::string request = PostText(
      "/v1/chat/completions",
      absl::StrCat(R"({"messages": [{"role": "user", "content": "hi"}], "max_tokens": )", kProbeTokens, "}"));
  std::vector<double> took;
  for (int i = 0; i < n; ++i) {
    const absl::Time begin = absl::Now();
    client.Send(request);
    const std::optional<HttpAnswer> answer = client.Read();
    if (!answer.has_value() || answer->code != 200) {
      std::fprintf(stderr, "a short request failed: %s\n",
                   answer.has_value() ? answer->body.c_str() : "no answer");
      break;
    }
    took.push_back(absl::ToDoubleMilliseconds(absl::Now() - begin));
  }
  std::sort(took.begin(), took.end());
  return took;
}

double At(const std::vector<double>& sorted, double quantile) {
  return sorted.empty() ? 0 : sorted[static_cast<size_t>(quantile * static_cast<double>(sorted.size() - 1))];
}

int Main(int argc, char** argv) {
  Options options;
  CLI::App app("streams_bench: many HTTP streams on one router");
  app.add_option("--router", options.router, "the program sluice-router")->required();
  app.add_option("--model", options.model)->capture_default_str();
  app.add_option("--idle", options.idle, "streams that say one word and wait")->capture_default_str();
  app.add_option("--active", options.active, "streams that go on")->capture_default_str();
  app.add_option("--rate", options.rate, "words a second of each active stream")->capture_default_str();
  app.add_option("--probes", options.probes, "short requests, each time")->capture_default_str();
  app.add_option("--open-within", options.seconds_to_open, "[seconds]")->capture_default_str();
  CLI11_PARSE(app, argc, argv);

  rlimit files{};
  getrlimit(RLIMIT_NOFILE, &files);
  files.rlim_cur = std::min<rlim_t>(files.rlim_max, options.idle + options.active + kFilesBeside);
  setrlimit(RLIMIT_NOFILE, &files);
  absl::StatusOr<ServedModel> model = LoadServedModel(options.model, "");
  if (!model.ok()) {
    std::fprintf(stderr, "%s\n", std::string(model.status().message()).c_str());
    return 1;
  }
  RouterProcess router(options, options.idle + options.active);
  const int32_t word = model->tokenizer->Encode(" word")->at(0);
  FakeWorkers workers(model->identity);
  if (!router.AwaitPort(router.internal())) {
    std::fprintf(stderr, "the router does not start\n");
    return 1;
  }
  for (int i = 0; i < kWorkers; ++i) {
    workers.Add("prefill", absl::StrCat("p", i), router.internal());
    workers.Add("decode", absl::StrCat("d", i), router.internal());
  }
  if (!router.Await()) {
    std::fprintf(stderr, "the router does not serve\n");
    return 1;
  }
  Model fake(&workers, word, options.rate);
  Probe(router.http(), options.probes / 5);  // warm
  const auto show = [&](const char* when, const std::vector<double>& took) {
    std::printf("%-28s p50 %6.2f ms  p90 %6.2f ms  p99 %6.2f ms  max %6.2f ms  (%zu)\n", when, At(took, 0.5),
                At(took, 0.9), At(took, 0.99), At(took, 1), took.size());
  };
  const auto router_is = [&](const char* when) {
    std::printf("%-28s router: RSS %lld kB, threads %lld\n", when,
                static_cast<long long>(StatusOf(router.pid(), "VmRSS")),
                static_cast<long long>(StatusOf(router.pid(), "Threads")));
    std::fflush(stdout);
  };
  router_is("unloaded");
  const std::vector<double> unloaded = Probe(router.http(), options.probes);
  show("unloaded", unloaded);

  Streams streams(router.http());
  const absl::Duration within = absl::Seconds(options.seconds_to_open);
  if (!streams.Open(options.idle / 2, kIdleTokens, within)) return 1;
  const int64_t half = StatusOf(router.pid(), "VmRSS");
  router_is("half of the idle streams");
  if (!streams.Open(options.idle - options.idle / 2, kIdleTokens, within)) return 1;
  const int64_t idle = StatusOf(router.pid(), "VmRSS");
  router_is("all idle streams");
  std::printf("an idle stream: %.1f kB of the router (the second half of %d)\n",
              static_cast<double>(idle - half) / (options.idle - options.idle / 2), options.idle);
  show("beside idle streams", Probe(router.http(), options.probes));

  if (!streams.Open(options.active, kActiveTokens, within)) return 1;
  absl::SleepFor(absl::Seconds(2));
  const int64_t said = fake.said();
  const absl::Time begin = absl::Now();
  const std::vector<double> loaded = Probe(router.http(), options.probes);
  const double seconds = absl::ToDoubleSeconds(absl::Now() - begin);
  show("beside all streams", loaded);
  router_is("all streams");
  std::printf("active streams: %.0f words/s came from workers meanwhile; %d streams ended\n",
              static_cast<double>(fake.said() - said) / seconds, streams.ended());
  std::printf("p99 of a short request: %.2f x the unloaded one\n", At(loaded, 0.99) / At(unloaded, 0.99));
  workers.SetScript([](const FakeAttempt&) {});
  return 0;
}

}  // namespace
}  // namespace sluice

int main(int argc, char** argv) { return sluice::Main(argc, argv); }
