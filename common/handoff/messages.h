// Role: the control messages of the hand-off as native structs; the servers' codec turns them into protobuf.
// Why: sender and receiver are tested without a wire. Threads: none, plain values. Whoever decodes a message
// may assume nothing about its numbers: the machines check every count before they use it.
#pragma once

#include <compare>
#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "common/base/strong_id.h"
#include "common/handoff/compatibility.h"
#include "common/handoff/slab.h"

namespace sluice {

inline constexpr int kHandoffProtocol = 2;

// One attempt to hand one request's KV over. The router makes both; a lower attempt is stale.
struct HandoffKey {
  std::string id;  // UUIDv7, never the client's request id
  uint32_t attempt = 0;
  friend auto operator<=>(const HandoffKey&, const HandoffKey&) = default;
};

struct HandoffIds {
  HandoffKey key;
  std::string src_incarnation;  // of the prefill process: a new one per process start
  std::string dst_incarnation;  // of the decode process
  friend bool operator==(const HandoffIds&, const HandoffIds&) = default;
};

// A slot of the receive ring; the generation counts its uses, so that a late word about an earlier use is
// known.
struct SlotUse {
  int slot = 0;
  uint64_t generation = 0;
  friend bool operator==(const SlotUse&, const SlotUse&) = default;
};

// --- once per control stream ---

struct Hello {  // P -> D
  int proto_min = kHandoffProtocol;
  int proto_max = kHandoffProtocol;
  std::string incarnation;
  Compatibility compatibility;
  std::string transport;          // KvTransport::name()
  std::string transport_address;  // KvTransport::LocalAddress(peer)
  uint64_t slot_bytes = 0;        // of P's ring; with probe_pushes: what a two-sided D posts receives for
  bool idle = false;              // nothing that P pushed over earlier streams is under way any more
  int probe_pushes = 0;           // pushes of min(P's, D's slot_bytes) into slot 0, before any slab
};

struct HelloAck {  // D -> P: the whole ring is P's credit; nobody else writes into it
  int proto = kHandoffProtocol;
  std::string incarnation;
  std::string transport_address;
  std::string ring_key;  // KvTransport::ExportKey
  int ring_slots = 0;
  uint64_t slot_bytes = 0;
};

struct Incompatible {  // D -> P: the stream is of no use until the field changes
  std::string field;
  std::string ours;
  std::string theirs;
};

// --- once per attempt ---

struct Offer {  // P -> D, when compute starts
  HandoffIds ids;
  int n_prompt = 0;
  std::vector<int> ceiling;           // [layer * n_kv_heads + head] rows at most
  std::string gates;                  // the request's gates, serialised; opaque here
  int64_t deadline_ms_remaining = 0;  // relative: clocks are never compared
  std::string trace_parent;           // W3C trace context, may be empty
};

struct Grant {  // D -> P: memory is reserved; slabs may come
  HandoffIds ids;
  int64_t lease_ms = 0;
};

enum class RejectReason { kBusy, kIncompatible, kTooLarge, kStale };

struct Reject {  // D -> P
  HandoffIds ids;
  RejectReason reason = RejectReason::kBusy;
  std::string detail;          // names the field or the shortage
  int64_t retry_after_ms = 0;  // kBusy
};

struct SlabReady {  // P -> D. One-sided transports: the bytes lie in the slot, complete. Two-sided: they want
                    // to go there
  HandoffIds ids;
  int seq = 0;  // 0, 1, ... over the whole attempt; a retry keeps its seq
  SlabHeader header;
  SlotUse slot;
  uint64_t checksum = 0;  // Ops::Checksum over the slab's bytes
};

struct SlabArmed {  // D -> P, two-sided transports: a receive into the slot is posted; push now
  HandoffIds ids;
  int seq = 0;
  SlotUse slot;
  int64_t order = 0;  // 0, 1, ... over the stream: pushes land in this order, whatever they are for
};

struct SlabAck {  // D -> P: the slot is free again
  HandoffIds ids;
  int seq = 0;
  SlotUse slot;
};

enum class SlabError { kChecksum, kNotReceiving, kTransport };

struct SlabFail {  // D -> P: the slot is free again; kChecksum: send the slab once more
  HandoffIds ids;
  int seq = 0;
  SlotUse slot;
  SlabError reason = SlabError::kChecksum;  // kTransport: the connection is of no use any more
};

struct Seal {  // P -> D: no more slabs; sent behind the last SlabReady
  HandoffIds ids;
  int slabs = 0;
  LogicalLen logical_len;  // position of the next token
  int64_t kept_total = 0;  // rows over all layers and heads
  uint64_t digest = 0;     // Manifest over all slabs and the fields of this message
  int first_token = 0;
  std::vector<int> distinct_prompt_ids;  // only with a repetition penalty
};

struct Commit {  // D -> P: everything validated; P may release
  HandoffIds ids;
  uint64_t digest = 0;
};

struct Abort {  // both ways
  HandoffIds ids;
  std::string reason;
  bool quiesced = true;  // nothing of the sender's is in flight for this attempt
};

struct AbortAck {  // both ways
  HandoffIds ids;
  bool quiesced = true;
};

struct Renew {  // P -> D: these attempts live; D -> P: those of them that D still holds
  std::vector<HandoffIds> ids;
};

using HandoffMessage = std::variant<Hello, HelloAck, Incompatible, Offer, Grant, Reject, SlabReady, SlabArmed,
                                    SlabAck, SlabFail, Seal, Commit, Abort, AbortAck, Renew>;

}  // namespace sluice
