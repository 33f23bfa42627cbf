#include "common/rpc/handoff_codec.h"

#include <utility>
#include <variant>

namespace sluice {
namespace {

namespace pb = internal::v1;

void Encode(const HandoffIds& in, pb::HandoffIds* out) {
  out->set_handoff_id(in.key.id);
  out->set_attempt(in.key.attempt);
  out->set_src_incarnation(in.src_incarnation);
  out->set_dst_incarnation(in.dst_incarnation);
}

HandoffIds Decode(const pb::HandoffIds& in) {
  return {{in.handoff_id(), in.attempt()}, in.src_incarnation(), in.dst_incarnation()};
}

void Encode(const SlotUse& in, pb::SlotUse* out) {
  out->set_slot(in.slot);
  out->set_generation(in.generation);
}

SlotUse Decode(const pb::SlotUse& in) { return {in.slot(), in.generation()}; }

void Encode(const Compatibility& in, pb::Compatibility* out) {
  out->set_weights_hash(in.weights_hash);
  out->set_tokenizer_hash(in.tokenizer_hash);
  out->set_rope_hash(in.rope_hash);
  out->set_kv_dtype(in.kv_dtype);
  out->set_page_rows(in.page_rows);
  out->set_n_layers(in.n_layers);
  out->set_n_kv_heads(in.n_kv_heads);
  out->set_head_dim(in.head_dim);
}

Compatibility Decode(const pb::Compatibility& in) {
  return {in.weights_hash(), in.tokenizer_hash(), in.rope_hash(),  in.kv_dtype(),
          in.page_rows(),    in.n_layers(),       in.n_kv_heads(), in.head_dim()};
}

struct Encoder {
  pb::HandoffMessage* out;

  void operator()(const Hello& m) const {
    auto* p = out->mutable_hello();
    p->set_proto_min(m.proto_min);
    p->set_proto_max(m.proto_max);
    p->set_incarnation(m.incarnation);
    Encode(m.compatibility, p->mutable_compatibility());
    p->set_transport(m.transport);
    p->set_transport_address(m.transport_address);
    p->set_slot_bytes(m.slot_bytes);
    p->set_idle(m.idle);
    p->set_probe_pushes(m.probe_pushes);
  }
  void operator()(const HelloAck& m) const {
    auto* p = out->mutable_hello_ack();
    p->set_proto(m.proto);
    p->set_incarnation(m.incarnation);
    p->set_transport_address(m.transport_address);
    p->set_ring_key(m.ring_key);
    p->set_ring_slots(m.ring_slots);
    p->set_slot_bytes(m.slot_bytes);
  }
  void operator()(const Incompatible& m) const {
    auto* p = out->mutable_incompatible();
    p->set_field(m.field);
    p->set_ours(m.ours);
    p->set_theirs(m.theirs);
  }
  void operator()(const Offer& m) const {
    auto* p = out->mutable_offer();
    Encode(m.ids, p->mutable_ids());
    p->set_n_prompt(m.n_prompt);
    p->mutable_ceiling()->Add(m.ceiling.begin(), m.ceiling.end());
    p->set_gates(m.gates);
    p->set_deadline_ms_remaining(m.deadline_ms_remaining);
    p->set_trace_parent(m.trace_parent);
  }
  void operator()(const Grant& m) const {
    auto* p = out->mutable_grant();
    Encode(m.ids, p->mutable_ids());
    p->set_lease_ms(m.lease_ms);
  }
  void operator()(const Reject& m) const {
    auto* p = out->mutable_reject();
    Encode(m.ids, p->mutable_ids());
    p->set_reason(static_cast<pb::Reject::Reason>(m.reason));
    p->set_detail(m.detail);
    p->set_retry_after_ms(m.retry_after_ms);
  }
  void operator()(const SlabReady& m) const {
    auto* p = out->mutable_slab_ready();
    Encode(m.ids, p->mutable_ids());
    p->set_seq(m.seq);
    p->set_layer(m.header.layer.value());
    p->set_head_begin(m.header.head_begin);
    p->mutable_row_begin()->Add(m.header.row_begin.begin(), m.header.row_begin.end());
    p->mutable_rows()->Add(m.header.rows.begin(), m.header.rows.end());
    Encode(m.slot, p->mutable_slot());
    p->set_checksum(m.checksum);
  }
  void operator()(const SlabArmed& m) const {
    auto* p = out->mutable_slab_armed();
    Encode(m.ids, p->mutable_ids());
    p->set_seq(m.seq);
    Encode(m.slot, p->mutable_slot());
    p->set_order(m.order);
  }
  void operator()(const SlabAck& m) const {
    auto* p = out->mutable_slab_ack();
    Encode(m.ids, p->mutable_ids());
    p->set_seq(m.seq);
    Encode(m.slot, p->mutable_slot());
  }
  void operator()(const SlabFail& m) const {
    auto* p = out->mutable_slab_fail();
    Encode(m.ids, p->mutable_ids());
    p->set_seq(m.seq);
    Encode(m.slot, p->mutable_slot());
    p->set_reason(static_cast<pb::SlabFail::Error>(m.reason));
  }
  void operator()(const Seal& m) const {
    auto* p = out->mutable_seal();
    Encode(m.ids, p->mutable_ids());
    p->set_slabs(m.slabs);
    p->set_logical_len(m.logical_len.value());
    p->set_kept_total(m.kept_total);
    p->set_digest(m.digest);
    p->set_first_token(m.first_token);
    p->mutable_distinct_prompt_ids()->Add(m.distinct_prompt_ids.begin(), m.distinct_prompt_ids.end());
  }
  void operator()(const Commit& m) const {
    auto* p = out->mutable_commit();
    Encode(m.ids, p->mutable_ids());
    p->set_digest(m.digest);
  }
  void operator()(const Abort& m) const {
    auto* p = out->mutable_abort();
    Encode(m.ids, p->mutable_ids());
    p->set_reason(m.reason);
    p->set_quiesced(m.quiesced);
  }
  void operator()(const AbortAck& m) const {
    auto* p = out->mutable_abort_ack();
    Encode(m.ids, p->mutable_ids());
    p->set_quiesced(m.quiesced);
  }
  void operator()(const Renew& m) const {
    auto* p = out->mutable_renew();
    for (const HandoffIds& ids : m.ids) Encode(ids, p->add_ids());
  }
};

}  // namespace

pb::HandoffMessage HandoffToProto(const HandoffMessage& message) {
  pb::HandoffMessage out;
  std::visit(Encoder{&out}, message);
  return out;
}

absl::StatusOr<HandoffMessage> HandoffFromProto(const pb::HandoffMessage& message) {
  switch (message.message_case()) {
    case pb::HandoffMessage::kHello: {
      const pb::Hello& p = message.hello();
      Hello out;
      out.proto_min = p.proto_min();
      out.proto_max = p.proto_max();
      out.incarnation = p.incarnation();
      out.compatibility = Decode(p.compatibility());
      out.transport = p.transport();
      out.transport_address = p.transport_address();
      out.slot_bytes = p.slot_bytes();
      out.idle = p.idle();
      out.probe_pushes = p.probe_pushes();
      return out;
    }
    case pb::HandoffMessage::kHelloAck: {
      const pb::HelloAck& p = message.hello_ack();
      return HelloAck{p.proto(),    p.incarnation(), p.transport_address(),
                      p.ring_key(), p.ring_slots(),  p.slot_bytes()};
    }
    case pb::HandoffMessage::kIncompatible: {
      const pb::Incompatible& p = message.incompatible();
      return Incompatible{p.field(), p.ours(), p.theirs()};
    }
    case pb::HandoffMessage::kOffer: {
      const pb::Offer& p = message.offer();
      return Offer{
          Decode(p.ids()),           p.n_prompt(),    {p.ceiling().begin(), p.ceiling().end()}, p.gates(),
          p.deadline_ms_remaining(), p.trace_parent()};
    }
    case pb::HandoffMessage::kGrant:
      return Grant{Decode(message.grant().ids()), message.grant().lease_ms()};
    case pb::HandoffMessage::kReject: {
      const pb::Reject& p = message.reject();
      if (!pb::Reject::Reason_IsValid(p.reason()))
        return absl::InvalidArgumentError("Reject.reason is unknown");
      return Reject{Decode(p.ids()), static_cast<RejectReason>(p.reason()), p.detail(), p.retry_after_ms()};
    }
    case pb::HandoffMessage::kSlabReady: {
      const pb::SlabReady& p = message.slab_ready();
      SlabReady out;
      out.ids = Decode(p.ids());
      out.seq = p.seq();
      out.header.layer = LayerId(p.layer());
      out.header.head_begin = p.head_begin();
      out.header.row_begin.assign(p.row_begin().begin(), p.row_begin().end());
      out.header.rows.assign(p.rows().begin(), p.rows().end());
      out.slot = Decode(p.slot());
      out.checksum = p.checksum();
      return out;
    }
    case pb::HandoffMessage::kSlabArmed: {
      const pb::SlabArmed& p = message.slab_armed();
      return SlabArmed{Decode(p.ids()), p.seq(), Decode(p.slot()), p.order()};
    }
    case pb::HandoffMessage::kSlabAck: {
      const pb::SlabAck& p = message.slab_ack();
      return SlabAck{Decode(p.ids()), p.seq(), Decode(p.slot())};
    }
    case pb::HandoffMessage::kSlabFail: {
      const pb::SlabFail& p = message.slab_fail();
      if (!pb::SlabFail::Error_IsValid(p.reason()))
        return absl::InvalidArgumentError("SlabFail.reason is unknown");
      return SlabFail{Decode(p.ids()), p.seq(), Decode(p.slot()), static_cast<SlabError>(p.reason())};
    }
    case pb::HandoffMessage::kSeal: {
      const pb::Seal& p = message.seal();
      return Seal{Decode(p.ids()),
                  p.slabs(),
                  LogicalLen(p.logical_len()),
                  p.kept_total(),
                  p.digest(),
                  p.first_token(),
                  {p.distinct_prompt_ids().begin(), p.distinct_prompt_ids().end()}};
    }
    case pb::HandoffMessage::kCommit:
      return Commit{Decode(message.commit().ids()), message.commit().digest()};
    case pb::HandoffMessage::kAbort:
      return Abort{Decode(message.abort().ids()), message.abort().reason(), message.abort().quiesced()};
    case pb::HandoffMessage::kAbortAck:
      return AbortAck{Decode(message.abort_ack().ids()), message.abort_ack().quiesced()};
    case pb::HandoffMessage::kRenew: {
      Renew out;
      for (const pb::HandoffIds& ids : message.renew().ids()) out.ids.push_back(Decode(ids));
      return out;
    }
    case pb::HandoffMessage::MESSAGE_NOT_SET:
      break;
  }
  return absl::InvalidArgumentError(
      "a hand-off message without a known body; is the peer of a newer protocol?");
}

}  // namespace sluice
