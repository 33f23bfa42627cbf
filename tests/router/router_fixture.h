// Role: a router in this process with fake workers and clients of every service.
// Threads: the test's, and those of the router.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "common/base/mutex.h"
#include "common/metrics/router_metrics.h"
#include "router/router.h"
#include "sluice/v1/admin.grpc.pb.h"
#include "sluice/v1/inference.grpc.pb.h"
#include "sluice/v1/sessions.grpc.pb.h"
#include "tests/router/fake_workers.h"

namespace sluice {

// The bundled model's tokenizer and template, with a context of 512 tokens.
ServedModel SmallModel();

// A reply as a client sees it.
struct SeenReply {
  grpc::Status status;
  std::vector<v1::ChatEvent> events;
  std::string text;
  std::vector<int32_t> ids;
  v1::Done done;
  int terminals = 0;  // Done events
};

class RouterTest : public testing::Test {
 protected:
  RouterTest();
  ~RouterTest() override;

  virtual RouterConfig Config();
  virtual ServedModel Model() { return SmallModel(); }
  // Starts the router on `store`, with prefill p1, p2 and decode d1, d2 unless `workers` says otherwise.
  void StartRouter(std::unique_ptr<SessionStore> store = nullptr,
                   std::vector<std::string> workers = {"p1", "p2", "d1", "d2"});
  void AddWorker(const std::string& name);  // "p..." is prefill, "d..." decode
  void AwaitWorkers(int prefill, int decode);
  // Runs `action` in a thread that ends before the test's objects do.
  void Later(std::function<void()> action);

  // Waits up to 10 s for what happens in the background.
  static bool Eventually(const std::function<bool()>& condition);
  static v1::ChatRequest Ask(const std::string& text);
  static v1::ChatRequest AskIn(const std::string& session_id, const std::string& text);
  SeenReply Stream(const v1::ChatRequest& request, grpc::ClientContext* context = nullptr);
  // The one ChatStream of a test is counted under `code`, though maybe after its client knows.
  void ExpectCounted(const std::string& code);
  // The ids of a text, and the end-of-turn id after them.
  std::vector<int32_t> Reply(const std::string& text, bool eos = true);

  Mutex later_mu_;
  std::vector<std::thread> later_ ABSL_GUARDED_BY(later_mu_);
  MetricsRegistry registry_;
  RouterMetrics metrics_;
  ServedModel model_;  // a copy for the test's own use
  FakeWorkers workers_;
  std::unique_ptr<Router> router_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::Inference::Stub> inference_;
  std::unique_ptr<v1::Sessions::Stub> sessions_;
  std::unique_ptr<v1::Admin::Stub> admin_;
};

}  // namespace sluice
