// Role: a request with every default filled in, checked against every bound, tokenised once, its gates
// resolved. Why it exists: after this nothing about a request can be wrong except the world. Threads: pure
// functions; a long prompt takes a while, so never on a gRPC thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/compression/compression_spec.h"
#include "common/text/stop_matcher.h"
#include "router/compression_codec.h"
#include "router/defaults.h"
#include "router/served_model.h"
#include "router/slo_admission.h"
#include "sluice/internal/v1/worker.pb.h"
#include "sluice/v1/inference.pb.h"

namespace sluice {

// A session as it stands when its turn is planned.
struct SessionState {
  Session session;
  std::vector<Turn> path;  // to the turn that this one follows
};

struct PlannedTurn {
  std::string session_id;
  std::string parent_turn_id;  // the turn this one follows; empty: none
  std::string turn_id;         // new
  std::vector<TurnMessage> messages;
  std::optional<SessionHome> home;
  SessionCompression compression;  // what the session remembers after this turn
};

struct RequestPlan {
  std::string request_id;  // the router's own
  std::string owner;       // SetOwner's
  std::string cache_salt;  // with owner: whose KV it may stand on
  std::vector<int32_t> prompt_ids;
  int turn_tokens = 0;
  internal::v1::SamplingParams sampling;  // of choice 0; the others have seeds of their own
  int choices = 1;                        // answers to the prompt
  std::vector<int32_t> eos_ids;  // those in sampling.stop_token_ids that end a sequence by the model's will
  std::vector<std::string> stop;
  bool context_bound = false;            // max_tokens is what the context leaves
  bool reply_is_text_of_its_own = true;  // else it continues the prompt
  ResolvedGates gates;
  // What may come in their place under pressure (Slo.LOWER_BUDGET), each with half the budget of the one
  // before.
  std::vector<ResolvedGates> lower_gates;
  int budget_asked = 0;  // before load lowered it; 0: it did not
  SloTerms slo;
  std::vector<uint64_t> prefix;  // RouteQuery's
  bool measure = false;          // Done waits for what compression lost
  std::optional<PlannedTurn> turn;
};

// Of requests and of sessions.
absl::Status CheckMetadata(const google::protobuf::Map<std::string, std::string>& metadata);

// Messages that end where a reply may begin. InvalidArgument names `field`, or a part of it.
absl::Status CheckMessages(const google::protobuf::RepeatedPtrField<v1::Message>& messages,
                           absl::string_view field);
std::vector<TurnMessage> TurnMessagesOf(const google::protobuf::RepeatedPtrField<v1::Message>& messages);

// Which model a request names; NotFound when it is not `model`.
absl::Status CheckModelName(const ServedModel& model, const std::string& name);

// What can be said before the session is read: fields, bounds, texts.
absl::Status CheckChat(const ServedModel& model, const v1::ChatRequest& request);

// session: of a session_turn; null for a single request. InvalidArgument and Unimplemented name the field.
absl::StatusOr<RequestPlan> PlanChat(const ServedModel& model, const v1::ChatRequest& request,
                                     const SessionState* session, const RequestDefaults& defaults = {});
absl::StatusOr<RequestPlan> PlanComplete(const ServedModel& model, const v1::CompleteRequest& request,
                                         const RequestDefaults& defaults = {});

// Which worker it wants. Borrows from the plan.
RouteQuery RouteQueryOf(const RequestPlan& plan);

// The gates' own figures, and the budget that was asked for.
v1::CompressionReport ReportOf(const RequestPlan& plan);

// Whose the request is: with its salt, the partition that its prefix is known in.
void SetOwner(const std::string& owner, RequestPlan* plan);

// As Started reports them.
v1::Sampling EffectiveSampling(const RequestPlan& plan);

// By which choice `choice` samples: the request's own for choice 0, for the others what n = 1 would have to
// be given to get the same answer.
uint64_t ChoiceSeed(uint64_t seed, int choice);

}  // namespace sluice
