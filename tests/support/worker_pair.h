// Role: a prefill and a decode server in this process, joined by real RPC and a transport of choice, and the
// smallest client that drives them as a router does. What disaggregation must equal is stated with it.
// Threads: those of the servers; Run may be called from several threads.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/engine/sampler.h"
#include "common/model/ranked_model.h"
#include "common/rpc/rpc_server.h"
#include "decode_server/decode_service.h"
#include "prefill_server/prefill_service.h"
#include "sluice/internal/v1/worker.grpc.pb.h"
#include "tests/support/patience.h"

namespace sluice {

// One decode server.
class TestDecode {
 public:
  TestDecode(const RankedModel& model, const std::string& transport, size_t kv_bytes = size_t{256} << 20);
  ~TestDecode();
  std::string address() const;
  const std::string& incarnation() const { return incarnation_; }
  RankedCache& cache() const { return *cache_; }
  const DecodeMetrics& metrics() const { return *metrics_; }
  // Every page and chunk free, nothing registered, running or in flight.
  bool Idle() const;

 private:
  const SteadyClock clock_;
  const std::string incarnation_;
  std::unique_ptr<MetricsRegistry> registry_;
  std::unique_ptr<DecodeMetrics> metrics_;
  std::unique_ptr<KvTransferMetrics> transfer_metrics_;
  std::unique_ptr<RankedCache> cache_;
  GenerationTable table_{256};
  std::unique_ptr<DecodeLoop> decode_loop_;
  std::unique_ptr<ReceiveLoop> receive_loop_;
  std::unique_ptr<GenerateService> generate_;
  std::unique_ptr<HandoffService> handoff_;
  std::unique_ptr<RpcServer> server_;
};

// One prefill server.
class TestPrefill {
 public:
  // shadow.rate 0: nothing is measured.
  TestPrefill(const RankedModel& model, const std::string& transport,
              PrefillLoopOptions options = DefaultOptions(), const ShadowOptions& shadow = {});
  ~TestPrefill();
  static PrefillLoopOptions DefaultOptions();
  std::string address() const;
  const PrefillLoop& loop() const { return *prefill_loop_; }
  const SendLoop& send_loop() const { return *send_loop_; }
  const PrefillMetrics& metrics() const { return *metrics_; }
  // No prompt queued or running, no job held.
  bool Idle() const;

 private:
  const SteadyClock clock_;
  std::unique_ptr<MetricsRegistry> registry_;
  std::unique_ptr<PrefillMetrics> metrics_;
  std::unique_ptr<KvTransferMetrics> transfer_metrics_;
  std::unique_ptr<SendLoop> send_loop_;
  std::unique_ptr<PrefillLoop> prefill_loop_;
  std::unique_ptr<PrefillService> service_;
  std::unique_ptr<RpcServer> server_;
};

struct PairRequest {
  std::vector<int32_t> prompt_ids;
  ResolvedGates gates;
  SamplingParams sampling;  // max_tokens must be set
  std::string session_id, parent_turn_id, turn_id;
  absl::Duration timeout = kPatience * absl::Seconds(60);
  absl::Duration cancel_after = absl::InfiniteDuration();
  bool measure = false;
};

struct PairReply {
  std::vector<int32_t> ids;
  std::vector<internal::v1::TokenLogprobs> logprobs;  // of each, if asked for
  std::string finish;
  internal::v1::FirstToken first;
  internal::v1::HandedOff handed_off;  // unset when the first token ended the turn
  v1::CompressionLoss loss;            // of requests that measure
};

// Generate on `decode`, then Prefill on `prefill`, as the router does.
absl::StatusOr<PairReply> RunPair(const TestPrefill& prefill, const TestDecode& decode,
                                  const PairRequest& request);

// All at once; no ids where one failed.
std::vector<std::vector<int32_t>> RunTogether(const TestPrefill& prefill, const TestDecode& decode,
                                              const std::vector<PairRequest>& requests);

// Waits until both are idle; false at the timeout. The leak oracle of every test.
bool WaitIdle(const TestPrefill& prefill, const TestDecode& decode,
              absl::Duration timeout = kPatience * absl::Seconds(10));

}  // namespace sluice
