#include "common/metrics/worker_metrics.h"

#include "common/metrics/buckets.h"
#include "common/metrics/shared_families.h"

namespace sluice {
namespace {

Counter TransferBytes(MetricsRegistry* registry, const char* form) {
  return registry->AddCounter("sluice_kv_transfer_bytes_total",
                              "KV handed off: logical is the full KV of the prompts, wire is what was sent.",
                              {{"form", form}});
}

Counter Evictions(MetricsRegistry* registry, const char* reason) {
  return registry->AddCounter(
      "sluice_evictions_total",
      "History blocks that went: under memory pressure, or with a turn that is no more.",
      {{"reason", reason}});
}

Counter PrefixTokens(MetricsRegistry* registry, const char* outcome) {
  return registry->AddCounter("sluice_prefix_cache_tokens_total",
                              "Prompt tokens found in history (hit) or computed (miss).",
                              {{"outcome", outcome}});
}

}  // namespace

PrefillMetrics::PrefillMetrics(MetricsRegistry* registry, const PrefillLabels& labels)
    : in_flight_queued(families::InFlight(registry, "queued")),
      in_flight_prefill(families::InFlight(registry, "prefill")),
      in_flight_transfer(families::InFlight(registry, "transfer")),
      queue_seconds(families::QueueSeconds(registry, "prefill")),
      prefill_seconds(registry->AddHistogram(
          "sluice_prefill_seconds", "From a prompt's first layer to its last.", buckets::FirstToken())),
      batch_size(families::BatchSize(registry)),
      step_seconds(families::StepSeconds(registry)),
      kv_transfer_seconds(registry->AddHistograms("sluice_kv_transfer_seconds", "From Offer to Commit.",
                                                  buckets::KvTransfer(), "transport", labels.transports)),
      kv_transfer_exposed_seconds(registry->AddHistogram(
          "sluice_kv_transfer_exposed_seconds",
          "The part of a hand-off that no compute hides: from the last layer's kept rows to Commit.",
          buckets::KvTransfer())),
      kv_transfer_size_bytes(registry->AddHistogram("sluice_kv_transfer_size_bytes",
                                                    "Bytes sent per hand-off.", buckets::KvTransferSize())),
      kv_transfer_bytes_logical(TransferBytes(registry, "logical")),
      kv_transfer_bytes_wire(TransferBytes(registry, "wire")),
      kv_transfer_retries(registry->AddCounter("sluice_kv_transfer_retries_total", "Slabs sent again.")),
      kv_transport_probe_bytes_per_second(registry->AddGauges("sluice_kv_transport_probe_bytes_per_second",
                                                              "Rate that the probe at start measured.",
                                                              "transport", labels.transports)),
      compression_kept_ratio(registry->AddHistograms("sluice_compression_kept_ratio",
                                                     "Kept rows over original rows, per prompt.",
                                                     buckets::Ratio(), "algorithm", labels.algorithms)),
      compression_seconds(registry->AddHistograms(
          "sluice_compression_seconds", "Time that choosing and gathering rows took, per prompt; on CPUs.",
          buckets::Compression(), "algorithm", labels.algorithms)),
      shadow_retained_mass(registry->AddHistograms("sluice_shadow_retained_attention_mass_ratio",
                                                   "Share of the last prompt tokens' attention that falls on "
                                                   "kept rows, per layer of a measured prompt.",
                                                   buckets::Ratio(), "algorithm", labels.algorithms)),
      shadow_top1_tokens(registry->AddCounters(
          "sluice_shadow_top1_tokens_total",
          "Tokens after a measured prompt for which full and compressed KV agree on the next one, or differ.",
          "algorithm", labels.algorithms, "outcome", {"agree", "differ"})),
      shadow_measured(registry->AddCounters("sluice_shadow_measured_total", "Prompts measured.", "algorithm",
                                            labels.algorithms)),
      shadow_skipped(registry->AddCounters("sluice_shadow_skipped_total",
                                           "Prompts picked for measurement and not measured.", "reason",
                                           {"memory", "busy", "deadline", "cancelled", "error", "stopping"})),
      shadow_seconds(registry->AddHistogram("sluice_shadow_seconds",
                                            "Time of the device that measuring a prompt took.",
                                            buckets::FirstToken())),
      kv_blocks_free(families::KvBlocks(registry, "free")),
      kv_blocks_active(families::KvBlocks(registry, "active")),
      kv_blocks_cached(families::KvBlocks(registry, "cached")),
      kv_memory_scratch_bytes(families::KvMemoryBytes(registry, "prefill", "scratch")),
      kv_memory_kept_bytes(families::KvMemoryBytes(registry, "prefill", "kept")),
      kv_memory_history_bytes(families::KvMemoryBytes(registry, "prefill", "history")),
      kv_memory_ring_bytes(families::KvMemoryBytes(registry, "prefill", "ring")),
      session_bytes(registry->AddGauge("sluice_session_bytes", "History held for sessions.")),
      evictions_pressure(Evictions(registry, "pressure")),
      evictions_forgotten(Evictions(registry, "forgotten")),
      prefix_tokens_hit(PrefixTokens(registry, "hit")),
      prefix_tokens_miss(PrefixTokens(registry, "miss")),
      cancelled_queued(families::Cancelled(registry, "queued")),
      cancelled_prefill(families::Cancelled(registry, "prefill")),
      cancelled_transfer(families::Cancelled(registry, "transfer")),
      non_finite_logits(families::NonFiniteLogits(registry)),
      last_forward_timestamp_seconds(families::LastForwardTimestampSeconds(registry)),
      model_load_progress_ratio(families::ModelLoadProgressRatio(registry)),
      model_load_seconds(families::ModelLoadSeconds(registry)),
      ready(families::Ready(registry)) {}

DecodeMetrics::DecodeMetrics(MetricsRegistry* registry)
    : in_flight_queued(families::InFlight(registry, "queued")),
      in_flight_transfer(families::InFlight(registry, "transfer")),
      in_flight_decode(families::InFlight(registry, "decode")),
      queue_seconds(families::QueueSeconds(registry, "decode")),
      batch_size(families::BatchSize(registry)),
      step_seconds(families::StepSeconds(registry)),
      kv_blocks_free(families::KvBlocks(registry, "free")),
      kv_blocks_active(families::KvBlocks(registry, "active")),
      kv_blocks_leased(families::KvBlocks(registry, "leased")),
      kv_blocks_orphaned(families::KvBlocks(registry, "orphaned")),
      kv_memory_pages_bytes(families::KvMemoryBytes(registry, "decode", "pages")),
      kv_memory_side_tables_bytes(families::KvMemoryBytes(registry, "decode", "side_tables")),
      kv_memory_ring_bytes(families::KvMemoryBytes(registry, "decode", "ring")),
      kv_integrity_mismatches(registry->AddCounter("sluice_kv_integrity_mismatch_total",
                                                   "Slabs whose checksum, counts or positions were wrong.")),
      preemptions(registry->AddCounter("sluice_preemptions_total",
                                       "Sequences stopped for their pages, and replayed.")),
      cancelled_queued(families::Cancelled(registry, "queued")),
      cancelled_transfer(families::Cancelled(registry, "transfer")),
      cancelled_decode(families::Cancelled(registry, "decode")),
      non_finite_logits(families::NonFiniteLogits(registry)),
      last_forward_timestamp_seconds(families::LastForwardTimestampSeconds(registry)),
      model_load_progress_ratio(families::ModelLoadProgressRatio(registry)),
      model_load_seconds(families::ModelLoadSeconds(registry)),
      ready(families::Ready(registry)) {}

}  // namespace sluice
