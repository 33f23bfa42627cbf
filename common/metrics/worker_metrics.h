// Role: what a prefill server and a decode server measure, beside the KV hand-off (kv_transfer_metrics.h).
// Threads: any.
#pragma once

#include <string>
#include <vector>

#include "common/metrics/metrics.h"

namespace sluice {

// The values that lists elsewhere own; anything else counts as "other".
struct PrefillLabels {
  std::vector<std::string> algorithms;  // presets and methods, as requests name them
  std::vector<std::string> transports;
};

struct PrefillMetrics {
  PrefillMetrics(MetricsRegistry* registry, const PrefillLabels& labels);

  Gauge in_flight_queued, in_flight_prefill, in_flight_transfer;
  Histogram queue_seconds;
  Histogram prefill_seconds;  // first layer begun to last layer done, pauses included
  Histogram batch_size;       // prompts computed together
  Histogram step_seconds;     // one layer of one batch

  Labeled<Histogram> kv_transfer_seconds;  // transport; Offer to Commit
  Histogram kv_transfer_exposed_seconds;   // last layer ready to Commit
  Histogram kv_transfer_size_bytes;        // per hand-off, on the wire
  Counter kv_transfer_bytes_logical;       // what the full KV of the prompt would have been
  Counter kv_transfer_bytes_wire;
  Counter kv_transfer_retries;                         // slabs sent again
  Labeled<Gauge> kv_transport_probe_bytes_per_second;  // transport
  Labeled<Histogram> compression_kept_ratio;           // algorithm; kept / original rows
  Labeled<Histogram> compression_seconds;              // algorithm; all layers of one prompt, on a CPU

  // What compression lost, on the prompts that --shadow-rate picks.
  Labeled<Histogram> shadow_retained_mass;       // algorithm; one layer of one prompt
  Labeled<Labeled<Counter>> shadow_top1_tokens;  // algorithm, outcome: agree, differ
  Labeled<Counter> shadow_measured;              // algorithm
  Labeled<Counter> shadow_skipped;               // reason
  Histogram shadow_seconds;                      // of the device, per prompt

  // History: blocks of the prefix tree.
  Gauge kv_blocks_free, kv_blocks_active, kv_blocks_cached;  // active: a pass reads them
  Gauge kv_memory_scratch_bytes, kv_memory_kept_bytes, kv_memory_history_bytes, kv_memory_ring_bytes;
  Gauge session_bytes;  // history that a session's path holds
  Counter evictions_pressure, evictions_forgotten;
  Counter prefix_tokens_hit, prefix_tokens_miss;

  Counter cancelled_queued, cancelled_prefill, cancelled_transfer;
  Counter non_finite_logits;
  Gauge last_forward_timestamp_seconds;  // unix
  Gauge model_load_progress_ratio, model_load_seconds;
  Gauge ready;
};

// Tokens per second of a decode server: the rate of sluice_batch_size_sum.
struct DecodeMetrics {
  explicit DecodeMetrics(MetricsRegistry* registry);

  Gauge in_flight_queued, in_flight_transfer, in_flight_decode;
  Histogram queue_seconds;  // registered, until pages were granted
  Histogram batch_size;     // sequences per step
  Histogram step_seconds;

  // leased: reserved for a hand-off under way. orphaned: of no request, and not free.
  Gauge kv_blocks_free, kv_blocks_active, kv_blocks_leased, kv_blocks_orphaned;
  Gauge kv_memory_pages_bytes, kv_memory_side_tables_bytes, kv_memory_ring_bytes;
  Counter kv_integrity_mismatches;
  Counter preemptions;

  Counter cancelled_queued, cancelled_transfer, cancelled_decode;
  Counter non_finite_logits;
  Gauge last_forward_timestamp_seconds;  // unix
  Gauge model_load_progress_ratio, model_load_seconds;
  Gauge ready;
};

}  // namespace sluice
