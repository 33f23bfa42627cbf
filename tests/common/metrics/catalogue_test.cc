// The catalogue: each process emits exactly the documented names, labels and bounds, and each handle is wired
// to the series that its name says.
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <set>
#include <sstream>

#include "common/base/random_id.h"
#include "common/metrics/kv_transfer_metrics.h"
#include "common/metrics/router_metrics.h"
#include "common/metrics/worker_metrics.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/common/metrics/scrape.h"

namespace sluice {
namespace {

using Labels = std::map<std::string, std::string>;
using ::testing::UnorderedElementsAreArray;

const RouterLabels kRouterLabels{{"Chat", "ChatStream"}, {"short_prompt"}};
const PrefillLabels kPrefillLabels{{"snapkv", "rocketkv"}, {"loopback", "ucx"}};
const std::vector<std::string> kFailures = {"peer_lost", "busy"};

struct Router {
  MetricsRegistry registry{{"router", "needle-14m", "0.1.0"}};
  RouterMetrics metrics{&registry, kRouterLabels};
};
struct Prefill {
  MetricsRegistry registry{{"prefill", "needle-14m", "0.1.0"}};
  PrefillMetrics metrics{&registry, kPrefillLabels};
  KvTransferMetrics kv{&registry, kFailures};
};
struct Decode {
  MetricsRegistry registry{{"decode", "needle-14m", "0.1.0"}};
  DecodeMetrics metrics{&registry};
  KvTransferMetrics kv{&registry, kFailures};
};

const std::vector<std::string> kEveryProcess = {"sluice_build_info",
                                                "sluice_ready",
                                                "sluice_requests_in_flight",
                                                "sluice_queue_seconds",
                                                "sluice_cancelled_total",
                                                "process_resident_memory_bytes",
                                                "process_cpu_seconds_total",
                                                "process_open_fds",
                                                "process_start_time_seconds",
                                                "process_max_fds",
                                                "process_network_receive_bytes_total",
                                                "process_network_transmit_bytes_total"};
const std::vector<std::string> kEveryWorker = {"sluice_kv_transfer_in_flight",
                                               "sluice_kv_transfer_failures_total",
                                               "sluice_kv_ring_slots",
                                               "sluice_kv_quarantine_oldest_seconds",
                                               "sluice_kv_lease_expired_total",
                                               "sluice_kv_blocks",
                                               "sluice_kv_memory_bytes",
                                               "sluice_batch_size",
                                               "sluice_step_seconds",
                                               "sluice_non_finite_logits_total",
                                               "sluice_last_forward_timestamp_seconds",
                                               "sluice_model_load_progress_ratio",
                                               "sluice_model_load_seconds"};
const std::vector<std::string> kRouterOnly = {"sluice_requests_total",
                                              "sluice_time_to_first_token_seconds",
                                              "sluice_inter_token_seconds",
                                              "sluice_time_per_output_token_seconds",
                                              "sluice_request_seconds",
                                              "sluice_prompt_tokens",
                                              "sluice_completion_tokens",
                                              "sluice_tokens_total",
                                              "sluice_compression_fallback_total",
                                              "sluice_session_turns_total",
                                              "sluice_sessions",
                                              "sluice_worker_state",
                                              "sluice_slow_client_total",
                                              "sluice_admission_refused_total",
                                              "sluice_slo_budget_lowered_total"};
const std::vector<std::string> kPrefillOnly = {"sluice_prefill_seconds",
                                               "sluice_kv_transfer_seconds",
                                               "sluice_kv_transfer_exposed_seconds",
                                               "sluice_kv_transfer_size_bytes",
                                               "sluice_kv_transfer_bytes_total",
                                               "sluice_kv_transfer_retries_total",
                                               "sluice_kv_transport_probe_bytes_per_second",
                                               "sluice_compression_kept_ratio",
                                               "sluice_compression_seconds",
                                               "sluice_shadow_retained_attention_mass_ratio",
                                               "sluice_shadow_top1_tokens_total",
                                               "sluice_shadow_measured_total",
                                               "sluice_shadow_skipped_total",
                                               "sluice_shadow_seconds",
                                               "sluice_session_bytes",
                                               "sluice_evictions_total",
                                               "sluice_prefix_cache_tokens_total"};
const std::vector<std::string> kDecodeOnly = {"sluice_kv_integrity_mismatch_total",
                                              "sluice_preemptions_total"};

std::vector<std::string> Concat(std::initializer_list<std::vector<std::string>> lists) {
  std::vector<std::string> all;
  for (const auto& list : lists) all.insert(all.end(), list.begin(), list.end());
  return all;
}

std::vector<std::string> Names(const Scrape& scrape) {
  std::vector<std::string> names;
  for (const auto& [name, family] : scrape.families) names.push_back(name);
  return names;
}

std::vector<std::string> AllTexts() {
  return {Router().registry.Render(), Prefill().registry.Render(), Decode().registry.Render()};
}

TEST(CatalogueTest, EachProcessEmitsItsNamesAndNoOther) {
  EXPECT_THAT(Names(ParseScrape(Router().registry.Render())),
              UnorderedElementsAreArray(Concat({kEveryProcess, kRouterOnly})));
  EXPECT_THAT(Names(ParseScrape(Prefill().registry.Render())),
              UnorderedElementsAreArray(Concat({kEveryProcess, kEveryWorker, kPrefillOnly})));
  EXPECT_THAT(Names(ParseScrape(Decode().registry.Render())),
              UnorderedElementsAreArray(Concat({kEveryProcess, kEveryWorker, kDecodeOnly})));
}

TEST(CatalogueTest, CountersEndInTotalAndOthersInTheirUnit) {
  const std::set<std::string> without_unit = {
      "sluice_build_info",    "sluice_ready",         "sluice_requests_in_flight",    "sluice_sessions",
      "sluice_worker_state",  "sluice_batch_size",    "sluice_kv_transfer_in_flight", "sluice_kv_blocks",
      "sluice_kv_ring_slots", "sluice_prompt_tokens", "sluice_completion_tokens",     "process_open_fds",
      "process_max_fds"};
  for (const std::string& text : AllTexts()) {
    for (const auto& [name, family] : ParseScrape(text).families) {
      EXPECT_EQ(name.size() > 6 && name.ends_with("_total"), family.type == "counter") << name;
      bool unit = name.ends_with("_seconds") || name.ends_with("_bytes") || name.ends_with("_ratio") ||
                  name.ends_with("_bytes_per_second");
      EXPECT_TRUE(unit || family.type == "counter" || without_unit.contains(name)) << name;
      EXPECT_FALSE(family.samples.empty()) << name;
    }
  }
}

TEST(CatalogueTest, OnlyDocumentedLabels) {
  const std::set<std::string> allowed = {"role",   "model",     "stage",    "algorithm", "method",
                                         "form",   "transport", "kind",     "state",     "outcome",
                                         "reason", "code",      "peer_role"};
  for (const std::string& text : AllTexts()) {
    for (const auto& [name, family] : ParseScrape(text).families) {
      for (const Sample& sample : family.samples) {
        EXPECT_EQ(sample.labels.contains("model"), name.starts_with("sluice_")) << name;
        EXPECT_EQ(sample.labels.contains("role"), name.starts_with("sluice_")) << name;
        for (const auto& [label, value] : sample.labels) {
          bool known = allowed.contains(label) || (label == "version" && name == "sluice_build_info") ||
                       (label == "le" && sample.name.ends_with("_bucket"));
          EXPECT_TRUE(known) << name << " has label " << label;
          EXPECT_FALSE(value.empty()) << name << " label " << label;
        }
      }
    }
  }
}

// The rendered `le` values of a histogram family's first series, in order.
std::vector<std::string> Bounds(const std::string& text, const std::string& family) {
  std::vector<std::string> bounds;
  const Scrape scrape = ParseScrape(text);
  for (const Sample& sample : scrape.families.at(family).samples) {
    if (sample.name != family + "_bucket") continue;
    bounds.push_back(sample.labels.at("le"));
    if (bounds.back() == "+Inf") break;
  }
  return bounds;
}

std::vector<std::string> Split(const std::string& words) {
  std::istringstream in(words + " +Inf");
  return {std::istream_iterator<std::string>(in), {}};
}

TEST(CatalogueTest, BucketsAreTheDocumentedOnes) {
  const std::string router = Router().registry.Render(), prefill = Prefill().registry.Render(),
                    decode = Decode().registry.Render();
  const auto first_token =
      Split("0.001 0.005 0.01 0.02 0.04 0.06 0.08 0.1 0.25 0.5 0.75 1 2.5 5 7.5 10 20 40 80 160");
  const auto inter_token =
      Split("0.0005 0.001 0.0025 0.005 0.0075 0.01 0.015 0.02 0.03 0.05 0.075 0.1 0.15 0.2 0.3 0.5 1 2.5");
  const auto queue = Split("0.0005 0.001 0.0025 0.005 0.01 0.025 0.05 0.1 0.25 0.5 1 2.5 5 10 25 50 60");
  const auto transfer =
      Split("5e-05 0.0001 0.00025 0.0005 0.001 0.0025 0.005 0.01 0.025 0.05 0.1 0.25 0.5 1 2.5 5 10");
  const auto tokens = Split("1 4 16 64 256 1024 4096 16384 65536 262144");
  const auto step = Split("0.0005 0.001 0.0025 0.005 0.01 0.025 0.05 0.1 0.25 0.5 1 2.5 5 10");
  const auto batch = Split("1 2 4 8 16 32 64 128 256 512 1024");
  EXPECT_EQ(Bounds(router, "sluice_time_to_first_token_seconds"), first_token);
  EXPECT_EQ(Bounds(prefill, "sluice_prefill_seconds"), first_token);
  EXPECT_EQ(Bounds(router, "sluice_inter_token_seconds"), inter_token);
  EXPECT_EQ(Bounds(router, "sluice_time_per_output_token_seconds"), inter_token);
  EXPECT_EQ(Bounds(router, "sluice_request_seconds"),
            Split("0.005 0.01 0.025 0.05 0.1 0.25 0.5 1 2.5 5 10 20 30 60 120 240 480 960"));
  for (const std::string& text : {router, prefill, decode})
    EXPECT_EQ(Bounds(text, "sluice_queue_seconds"), queue);
  EXPECT_EQ(Bounds(router, "sluice_prompt_tokens"), tokens);
  EXPECT_EQ(Bounds(router, "sluice_completion_tokens"), tokens);
  EXPECT_EQ(Bounds(prefill, "sluice_kv_transfer_seconds"), transfer);
  EXPECT_EQ(Bounds(prefill, "sluice_kv_transfer_exposed_seconds"), transfer);
  EXPECT_EQ(Bounds(prefill, "sluice_compression_seconds"), transfer);
  EXPECT_EQ(Bounds(prefill, "sluice_kv_transfer_size_bytes"),
            Split("4096 16384 65536 262144 1048576 4194304 16777216 67108864 268435456 1073741824 4294967296"
                  " 17179869184 68719476736"));
  const auto ratio =
      Split("0.05 0.1 0.15 0.2 0.25 0.3 0.35 0.4 0.45 0.5 0.55 0.6 0.65 0.7 0.75 0.8 0.85 0.9 0.95 1");
  EXPECT_EQ(Bounds(prefill, "sluice_compression_kept_ratio"), ratio);
  EXPECT_EQ(Bounds(prefill, "sluice_shadow_retained_attention_mass_ratio"), ratio);
  EXPECT_EQ(Bounds(prefill, "sluice_shadow_seconds"), first_token);
  for (const std::string& text : {prefill, decode}) {
    EXPECT_EQ(Bounds(text, "sluice_step_seconds"), step);
    EXPECT_EQ(Bounds(text, "sluice_batch_size"), batch);
  }
}

struct Wire {
  std::function<double()> touch;  // writes a value into one handle, returns it
  std::string sample;
  Labels labels;
};

// Touches each handle with a value of its own; afterwards every series of the listed families has just that
// value.
void ExpectWired(const MetricsRegistry& registry, const std::vector<Wire>& wires) {
  std::vector<double> wrote;
  for (const Wire& wire : wires) wrote.push_back(wire.touch());
  const Scrape scrape = ParseScrape(registry.Render());
  for (size_t i = 0; i < wires.size(); ++i) {
    std::optional<double> value = scrape.Value(wires[i].sample, wires[i].labels);
    ASSERT_TRUE(value.has_value()) << wires[i].sample << " " << ::testing::PrintToString(wires[i].labels);
    EXPECT_EQ(*value, wrote[i]) << wires[i].sample << " " << ::testing::PrintToString(wires[i].labels);
  }
}

class Toucher {
 public:
  Wire operator()(const Counter& counter, const std::string& name, Labels labels = {}) {
    return {[counter, value = ++next_] {
              counter.Increment(value);
              return value;
            },
            name, std::move(labels)};
  }
  Wire operator()(const Gauge& gauge, const std::string& name, Labels labels = {}) {
    return {[gauge, value = ++next_] {
              gauge.Set(value);
              return value;
            },
            name, std::move(labels)};
  }
  Wire operator()(const Histogram& histogram, const std::string& name, Labels labels = {}) {
    return {[histogram, value = ++next_] {
              histogram.Observe(value);
              return value;
            },
            name + "_sum", std::move(labels)};
  }

 private:
  double next_ = 0;
};

TEST(CatalogueTest, RouterHandlesAreWired) {
  Router router;
  const RouterMetrics& m = router.metrics;
  Toucher touch;
  std::vector<Wire> wires = {
      touch(m.requests.At("ChatStream").At("NOT_FOUND"), "sluice_requests_total",
            {{"method", "ChatStream"}, {"code", "NOT_FOUND"}}),
      touch(m.requests.At("Chat").At("OK"), "sluice_requests_total", {{"method", "Chat"}, {"code", "OK"}}),
      touch(m.requests.At("new").At("17"), "sluice_requests_total", {{"method", "other"}, {"code", "other"}}),
      touch(m.in_flight_queued, "sluice_requests_in_flight", {{"stage", "queued"}}),
      touch(m.in_flight_prefill, "sluice_requests_in_flight", {{"stage", "prefill"}}),
      touch(m.in_flight_transfer, "sluice_requests_in_flight", {{"stage", "transfer"}}),
      touch(m.in_flight_decode, "sluice_requests_in_flight", {{"stage", "decode"}}),
      touch(m.time_to_first_token_seconds, "sluice_time_to_first_token_seconds"),
      touch(m.inter_token_seconds, "sluice_inter_token_seconds"),
      touch(m.time_per_output_token_seconds, "sluice_time_per_output_token_seconds"),
      touch(m.request_seconds, "sluice_request_seconds"),
      touch(m.queue_seconds, "sluice_queue_seconds", {{"stage", "router"}}),
      touch(m.prompt_tokens, "sluice_prompt_tokens"),
      touch(m.completion_tokens, "sluice_completion_tokens"),
      touch(m.tokens_prompt, "sluice_tokens_total", {{"kind", "prompt"}}),
      touch(m.tokens_cached, "sluice_tokens_total", {{"kind", "cached"}}),
      touch(m.tokens_completion, "sluice_tokens_total", {{"kind", "completion"}}),
      touch(m.compression_fallbacks.At("short_prompt"), "sluice_compression_fallback_total",
            {{"reason", "short_prompt"}}),
      touch(m.session_turns_warm, "sluice_session_turns_total", {{"outcome", "warm"}}),
      touch(m.session_turns_cold, "sluice_session_turns_total", {{"outcome", "cold"}}),
      touch(m.session_turns_remote, "sluice_session_turns_total", {{"outcome", "remote"}}),
      touch(m.sessions_idle, "sluice_sessions", {{"state", "idle"}}),
      touch(m.sessions_busy, "sluice_sessions", {{"state", "busy"}}),
      touch(m.cancelled_queued, "sluice_cancelled_total", {{"stage", "queued"}}),
      touch(m.cancelled_prefill, "sluice_cancelled_total", {{"stage", "prefill"}}),
      touch(m.cancelled_transfer, "sluice_cancelled_total", {{"stage", "transfer"}}),
      touch(m.cancelled_decode, "sluice_cancelled_total", {{"stage", "decode"}}),
      touch(m.slow_clients, "sluice_slow_client_total"),
      touch(m.ready, "sluice_ready"),
  };
  for (const auto& [role, gauges] :
       {std::pair("prefill", m.prefill_workers), std::pair("decode", m.decode_workers)}) {
    wires.push_back(touch(gauges.joining, "sluice_worker_state", {{"role", role}, {"state", "joining"}}));
    wires.push_back(touch(gauges.ready, "sluice_worker_state", {{"role", role}, {"state", "ready"}}));
    wires.push_back(touch(gauges.draining, "sluice_worker_state", {{"role", role}, {"state", "draining"}}));
    wires.push_back(touch(gauges.lost, "sluice_worker_state", {{"role", role}, {"state", "lost"}}));
  }
  ExpectWired(router.registry, wires);
}

std::vector<Wire> TransferWires(const KvTransferMetrics& kv, Toucher& touch) {
  return {touch(kv.in_flight, "sluice_kv_transfer_in_flight"),
          touch(kv.failures.At("peer_lost"), "sluice_kv_transfer_failures_total", {{"reason", "peer_lost"}}),
          touch(kv.ring_slots_free, "sluice_kv_ring_slots", {{"state", "free"}}),
          touch(kv.ring_slots_busy, "sluice_kv_ring_slots", {{"state", "busy"}}),
          touch(kv.ring_slots_quarantined, "sluice_kv_ring_slots", {{"state", "quarantined"}}),
          touch(kv.quarantine_oldest_seconds, "sluice_kv_quarantine_oldest_seconds"),
          touch(kv.lease_expired, "sluice_kv_lease_expired_total")};
}

// What both workers have, under the same member names.
template <class Metrics>
std::vector<Wire> WorkerWires(const Metrics& m, const std::string& role, Toucher& touch) {
  return {touch(m.in_flight_queued, "sluice_requests_in_flight", {{"stage", "queued"}}),
          touch(m.in_flight_transfer, "sluice_requests_in_flight", {{"stage", "transfer"}}),
          touch(m.queue_seconds, "sluice_queue_seconds", {{"stage", role}}),
          touch(m.batch_size, "sluice_batch_size"),
          touch(m.step_seconds, "sluice_step_seconds"),
          touch(m.kv_blocks_free, "sluice_kv_blocks", {{"state", "free"}}),
          touch(m.kv_blocks_active, "sluice_kv_blocks", {{"state", "active"}}),
          touch(m.kv_memory_ring_bytes, "sluice_kv_memory_bytes", {{"stage", role}, {"kind", "ring"}}),
          touch(m.cancelled_queued, "sluice_cancelled_total", {{"stage", "queued"}}),
          touch(m.cancelled_transfer, "sluice_cancelled_total", {{"stage", "transfer"}}),
          touch(m.non_finite_logits, "sluice_non_finite_logits_total"),
          touch(m.last_forward_timestamp_seconds, "sluice_last_forward_timestamp_seconds"),
          touch(m.model_load_progress_ratio, "sluice_model_load_progress_ratio"),
          touch(m.model_load_seconds, "sluice_model_load_seconds"),
          touch(m.ready, "sluice_ready")};
}

TEST(CatalogueTest, PrefillHandlesAreWired) {
  Prefill prefill;
  const PrefillMetrics& m = prefill.metrics;
  Toucher touch;
  std::vector<Wire> wires = WorkerWires(m, "prefill", touch);
  for (Wire& wire : TransferWires(prefill.kv, touch)) wires.push_back(std::move(wire));
  const auto memory = [](const char* kind) { return Labels{{"stage", "prefill"}, {"kind", kind}}; };
  for (Wire& wire : std::vector<Wire>{
           touch(m.in_flight_prefill, "sluice_requests_in_flight", {{"stage", "prefill"}}),
           touch(m.prefill_seconds, "sluice_prefill_seconds"),
           touch(m.kv_transfer_seconds.At("ucx"), "sluice_kv_transfer_seconds", {{"transport", "ucx"}}),
           touch(m.kv_transfer_exposed_seconds, "sluice_kv_transfer_exposed_seconds"),
           touch(m.kv_transfer_size_bytes, "sluice_kv_transfer_size_bytes"),
           touch(m.kv_blocks_cached, "sluice_kv_blocks", {{"state", "cached"}}),
           touch(m.kv_transfer_bytes_logical, "sluice_kv_transfer_bytes_total", {{"form", "logical"}}),
           touch(m.kv_transfer_bytes_wire, "sluice_kv_transfer_bytes_total", {{"form", "wire"}}),
           touch(m.kv_transfer_retries, "sluice_kv_transfer_retries_total"),
           touch(m.kv_transport_probe_bytes_per_second.At("loopback"),
                 "sluice_kv_transport_probe_bytes_per_second", {{"transport", "loopback"}}),
           touch(m.compression_kept_ratio.At("snapkv"), "sluice_compression_kept_ratio",
                 {{"algorithm", "snapkv"}}),
           touch(m.compression_seconds.At("rocketkv"), "sluice_compression_seconds",
                 {{"algorithm", "rocketkv"}}),
           touch(m.shadow_retained_mass.At("snapkv"), "sluice_shadow_retained_attention_mass_ratio",
                 {{"algorithm", "snapkv"}}),
           touch(m.shadow_top1_tokens.At("snapkv").At("agree"), "sluice_shadow_top1_tokens_total",
                 {{"algorithm", "snapkv"}, {"outcome", "agree"}}),
           touch(m.shadow_top1_tokens.At("rocketkv").At("differ"), "sluice_shadow_top1_tokens_total",
                 {{"algorithm", "rocketkv"}, {"outcome", "differ"}}),
           touch(m.shadow_measured.At("rocketkv"), "sluice_shadow_measured_total",
                 {{"algorithm", "rocketkv"}}),
           touch(m.shadow_skipped.At("memory"), "sluice_shadow_skipped_total", {{"reason", "memory"}}),
           touch(m.shadow_seconds, "sluice_shadow_seconds"),
           touch(m.kv_memory_scratch_bytes, "sluice_kv_memory_bytes", memory("scratch")),
           touch(m.kv_memory_kept_bytes, "sluice_kv_memory_bytes", memory("kept")),
           touch(m.kv_memory_history_bytes, "sluice_kv_memory_bytes", memory("history")),
           touch(m.session_bytes, "sluice_session_bytes"),
           touch(m.evictions_pressure, "sluice_evictions_total", {{"reason", "pressure"}}),
           touch(m.evictions_forgotten, "sluice_evictions_total", {{"reason", "forgotten"}}),
           touch(m.prefix_tokens_hit, "sluice_prefix_cache_tokens_total", {{"outcome", "hit"}}),
           touch(m.prefix_tokens_miss, "sluice_prefix_cache_tokens_total", {{"outcome", "miss"}}),
           touch(m.cancelled_prefill, "sluice_cancelled_total", {{"stage", "prefill"}}),
       }) {
    wires.push_back(std::move(wire));
  }
  ExpectWired(prefill.registry, wires);
}

TEST(CatalogueTest, DecodeHandlesAreWired) {
  Decode decode;
  const DecodeMetrics& m = decode.metrics;
  Toucher touch;
  std::vector<Wire> wires = WorkerWires(m, "decode", touch);
  for (Wire& wire : TransferWires(decode.kv, touch)) wires.push_back(std::move(wire));
  for (Wire& wire : std::vector<Wire>{
           touch(m.in_flight_decode, "sluice_requests_in_flight", {{"stage", "decode"}}),
           touch(m.kv_memory_pages_bytes, "sluice_kv_memory_bytes", {{"stage", "decode"}, {"kind", "pages"}}),
           touch(m.kv_memory_side_tables_bytes, "sluice_kv_memory_bytes",
                 {{"stage", "decode"}, {"kind", "side_tables"}}),
           touch(m.kv_blocks_leased, "sluice_kv_blocks", {{"state", "leased"}}),
           touch(m.kv_blocks_orphaned, "sluice_kv_blocks", {{"state", "orphaned"}}),
           touch(m.kv_integrity_mismatches, "sluice_kv_integrity_mismatch_total"),
           touch(m.preemptions, "sluice_preemptions_total"),
           touch(m.cancelled_decode, "sluice_cancelled_total", {{"stage", "decode"}}),
       }) {
    wires.push_back(std::move(wire));
  }
  ExpectWired(decode.registry, wires);
}

TEST(CatalogueTest, NoTrafficAddsASeries) {
  Router router;
  Prefill prefill;
  const size_t router_before = ParseScrape(router.registry.Render()).sample_count();
  const size_t prefill_before = ParseScrape(prefill.registry.Render()).sample_count();
  for (int i = 0; i < 50; ++i) {
    const std::string value = RandomId128();
    router.metrics.requests.At(value).At(value).Increment();
    router.metrics.compression_fallbacks.At(value).Increment();
    prefill.metrics.kv_transfer_seconds.At(value).Observe(1);
    prefill.metrics.compression_kept_ratio.At(value).Observe(1);
    prefill.metrics.shadow_top1_tokens.At(value).At(value).Increment();
    prefill.metrics.shadow_skipped.At(value).Increment();
    prefill.metrics.kv_transport_probe_bytes_per_second.At(value).Set(1);
    prefill.kv.failures.At(value).Increment();
  }
  EXPECT_EQ(ParseScrape(router.registry.Render()).sample_count(), router_before);
  EXPECT_EQ(ParseScrape(prefill.registry.Render()).sample_count(), prefill_before);
  EXPECT_EQ(router.metrics.requests.At("x").At("y").Value(), 50);
}

TEST(CatalogueTest, BuildInfoSaysWhatRuns) {
  const Scrape scrape = ParseScrape(Decode().registry.Render());
  const Sample& sample = scrape.families.at("sluice_build_info").samples.at(0);
  EXPECT_EQ(sample.value, 1);
  EXPECT_EQ(sample.labels, (Labels{{"role", "decode"}, {"version", "0.1.0"}, {"model", "needle-14m"}}));
}

TEST(CatalogueTest, PromtoolFindsNothing) {
  if (std::system("promtool --version >/dev/null 2>&1") != 0) GTEST_SKIP() << "promtool is not installed";
  const auto file = std::filesystem::temp_directory_path() / ("sluice_scrape_" + RandomId128());
  for (const std::string& text : AllTexts()) {
    std::ofstream(file) << text;
    const std::string command = "promtool check metrics < " + file.string() + " 2>&1";
    FILE* promtool = popen(command.c_str(), "r");
    ASSERT_NE(promtool, nullptr);
    std::string said;
    for (int c; (c = fgetc(promtool)) != EOF;) said.push_back(static_cast<char>(c));
    EXPECT_EQ(pclose(promtool), 0) << said;
    EXPECT_EQ(said, "");
  }
  std::filesystem::remove(file);
}

}  // namespace
}  // namespace sluice
