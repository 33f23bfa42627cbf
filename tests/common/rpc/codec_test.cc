#include <gtest/gtest.h>

#include "absl/time/time.h"
#include "common/rpc/gates_codec.h"
#include "common/rpc/sampling_codec.h"
#include "common/rpc/status_codec.h"
#include "sluice/v1/errors.pb.h"

namespace sluice {
namespace {

TEST(StatusCodec, DetailsSurviveTheWire) {
  absl::Status status =
      WithRetryAfter(WithReason(absl::ResourceExhaustedError("queue full"), "QUEUE_FULL", {{"limit", "8"}}),
                     absl::Milliseconds(1500));
  grpc::Status wire = ToGrpcStatus(status);
  EXPECT_EQ(wire.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(wire.error_message(), "queue full");

  v1::RpcStatus details;
  ASSERT_TRUE(details.ParseFromString(wire.error_details()));
  EXPECT_EQ(details.code(), 8);
  EXPECT_EQ(details.details_size(), 2);

  absl::Status back = FromGrpcStatus(wire);
  EXPECT_EQ(back.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(ReasonOf(back), "QUEUE_FULL");
  EXPECT_EQ(RetryAfterOf(back), absl::Milliseconds(1500));
}

TEST(StatusCodec, FieldErrorsNameTheField) {
  absl::Status status = BadField("sampling.temperature", "3 is not in [0, 2]");
  EXPECT_EQ(status.message(), "sampling.temperature: 3 is not in [0, 2]");
  v1::RpcStatus details;
  ASSERT_TRUE(details.ParseFromString(ToGrpcStatus(status).error_details()));
  ASSERT_EQ(details.details_size(), 1);
  EXPECT_EQ(details.details(0).type_url(), "type.googleapis.com/google.rpc.BadRequest");
  v1::BadRequest bad;
  ASSERT_TRUE(bad.ParseFromString(details.details(0).value()));
  EXPECT_EQ(bad.field_violations(0).field(), "sampling.temperature");
  EXPECT_EQ(FieldOf(status), "sampling.temperature");
  EXPECT_EQ(FieldNotServed("slo").code(), absl::StatusCode::kUnimplemented);
  EXPECT_EQ(FieldOf(FieldNotServed("slo")), "slo");
  EXPECT_EQ(FieldOf(absl::InternalError("x")), "");
}

TEST(StatusCodec, EveryCodeMapsToItself) {
  for (int code = 1; code <= 16; ++code) {
    absl::Status status(static_cast<absl::StatusCode>(code), "x");
    EXPECT_EQ(FromGrpcStatus(ToGrpcStatus(status)), status) << code;
    EXPECT_TRUE(MadeByPeer(ToGrpcStatus(status))) << code;
  }
  EXPECT_TRUE(FromGrpcStatus(grpc::Status::OK).ok());
  EXPECT_TRUE(ToGrpcStatus(absl::OkStatus()).ok());
}

TEST(StatusCodec, ALongMessageIsCutBetweenCharacters) {
  std::string text(2047, 'a');
  text += "\u00e9\u00e9";
  std::string cut = ToGrpcStatus(absl::InternalError(text)).error_message();
  EXPECT_EQ(cut, std::string(2047, 'a') + "...");
}

TEST(StatusCodec, MalformedDetailsAreDropped) {
  grpc::Status wire(grpc::StatusCode::ABORTED, "x", "\xff\xff\xff");
  EXPECT_EQ(FromGrpcStatus(wire), absl::AbortedError("x"));
  absl::Status status = absl::AbortedError("x");
  status.SetPayload("type.googleapis.com/google.rpc.RetryInfo", absl::Cord("\xff"));
  EXPECT_EQ(RetryAfterOf(status), std::nullopt);
}

ResolvedGates AllFieldsSet() {
  ResolvedGates gates;
  gates.method = "sluice";
  gates.propagation = {
      PropagationKind::kRerun, 5, 100, {32, {Pooling::kFading, 3, 16.5f, 4.25f}, true, true, true}};
  gates.retention = {RetentionKind::kH2o,
                     512,
                     4,
                     5,
                     6,
                     7,
                     true,
                     8,
                     9,
                     10,
                     11,
                     0.5f,
                     {32, {Pooling::kAvg, 63, 1, 2}, true, true}};
  gates.selection = {SelectionKind::kExactTopKGroup, 7, 20, 300};
  gates.history = HistoryKind::kKeep;
  gates.budget_tokens = 1024;
  gates.off_causes = {OffCause::kSlidingWindow, OffCause::kLaterTurn};
  gates.off_reason = "why";
  return gates;
}

TEST(GatesCodec, RoundTripKeepsEveryField) {
  ResolvedGates gates = AllFieldsSet();
  absl::StatusOr<ResolvedGates> back = GatesFromProto(GatesToProto(gates));
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(*back, gates);
}

TEST(GatesCodec, WhatItDoesNotKnowIsNamed) {
  internal::v1::ResolvedGates proto = GatesToProto(AllFieldsSet());
  proto.set_selection_kind(9);
  EXPECT_EQ(GatesFromProto(proto).status().message(), "gates.selection_kind: unknown kind 9");
  proto = GatesToProto(AllFieldsSet());
  proto.set_retention_budget(-1);
  EXPECT_EQ(GatesFromProto(proto).status().message(), "gates.retention_budget: -1 < 0");
  proto = GatesToProto(AllFieldsSet());
  proto.add_off_causes(6);
  EXPECT_EQ(GatesFromProto(proto).status().message(), "gates.off_causes: unknown kind 6");
  proto = GatesToProto(AllFieldsSet());
  proto.set_retention_floor(1.5f);
  EXPECT_EQ(GatesFromProto(proto).status().message(), "gates.retention_floor: 1.5 is not in [0, 1]");
  proto = GatesToProto(AllFieldsSet());
  proto.mutable_retention_pooling()->set_after(-1);
  EXPECT_EQ(GatesFromProto(proto).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(SamplingCodec, EveryFieldSurvivesTheWire) {
  const SamplingParams params{.temperature = 0.5f,
                              .top_k = 3,
                              .top_p = 0.9f,
                              .min_p = 0.1f,
                              .repetition_penalty = 1.5f,
                              .presence_penalty = 0.25f,
                              .frequency_penalty = -0.25f,
                              .seed = uint64_t{1} << 63,
                              .max_tokens = 40,
                              .min_tokens = 2,
                              .stop_ids = {7, 8},
                              .logit_bias = {{9, -100}},
                              .forced_ids = {3, 1, 2},
                              .logprobs = true,
                              .top_logprobs = 5};
  const internal::v1::SamplingParams wire = SamplingToProto(params);
  std::vector<const google::protobuf::FieldDescriptor*> set;
  wire.GetReflection()->ListFields(wire, &set);
  EXPECT_EQ(set.size(), 15u);
  const SamplingParams back = SamplingFromProto(wire);
  EXPECT_EQ(SamplingToProto(back).SerializeAsString(), wire.SerializeAsString());
  EXPECT_EQ(back.seed, params.seed);
  EXPECT_EQ(back.stop_ids, params.stop_ids);
  EXPECT_EQ(back.forced_ids, params.forced_ids);
  EXPECT_EQ(back.top_logprobs, 5);
  ASSERT_EQ(back.logit_bias.size(), 1u);
  EXPECT_EQ(back.logit_bias[0].id, 9);
  EXPECT_EQ(back.logit_bias[0].bias, -100);
}

}  // namespace
}  // namespace sluice
