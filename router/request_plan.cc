#include "router/request_plan.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/base/random_id.h"
#include "common/base/status.h"
#include "common/model/gate_context.h"
#include "common/rpc/status_codec.h"
#include "router/conversation.h"
#include "router/prefix_table.h"
#include "router/prompt_length.h"
#include "router/sampling_bounds.h"

namespace sluice {
namespace {

constexpr size_t kMaxMetadata = kMaxSessionMetadata;
constexpr size_t kMaxMetadataBytes = 4096;
constexpr size_t kMaxRequestIdBytes = 128;
constexpr size_t kMaxCacheSaltBytes = 128;

// Fields that ChatRequest and CompleteRequest share.
template <class Request>
absl::Status CheckShared(const ServedModel& model, const Request& request) {
  SLUICE_RETURN_IF_ERROR(CheckModelName(model, request.model()));
  if (request.request_id().size() > kMaxRequestIdBytes) {
    return BadField("request_id", absl::StrCat(request.request_id().size(), " bytes; at most 128"));
  }
  if (request.cache_salt().size() > kMaxCacheSaltBytes) {
    return BadField("cache_salt", absl::StrCat(request.cache_salt().size(), " bytes; at most 128"));
  }
  return CheckMetadata(request.metadata());
}

constexpr int kMostSloMs = 3'600'000;
constexpr int kLowerings = 3;

absl::StatusOr<SloTerms> SloTermsOf(const v1::Slo& slo) {
  SloTerms terms;
  const auto read = [](const char* field, int ms, std::optional<absl::Duration>* out) {
    if (ms < 1 || ms > kMostSloMs)
      return BadField(field, absl::StrCat(ms, " is not in [1, ", kMostSloMs, "]"));
    *out = absl::Milliseconds(ms);
    return absl::OkStatus();
  };
  if (slo.has_ttft_ms()) SLUICE_RETURN_IF_ERROR(read("slo.ttft_ms", slo.ttft_ms(), &terms.first_token));
  if (slo.has_tpot_ms()) SLUICE_RETURN_IF_ERROR(read("slo.tpot_ms", slo.tpot_ms(), &terms.per_token));
  if (!v1::Slo::OnPressure_IsValid(slo.on_pressure())) {
    return BadField("slo.on_pressure", "set REFUSE or LOWER_BUDGET");
  }
  return terms;
}

// With half the budget each time, and half the rows that go on to later layers.
std::vector<ResolvedGates> LowerGates(CompressionSpec spec, const GateContext& context,
                                      const ResolvedGates& asked) {
  std::vector<ResolvedGates> lower;
  const PropagationGate& propagation = asked.propagation;
  const bool by_rate = propagation.kind == PropagationKind::kTsp || spec.tsp_rate.has_value();
  spec.keep_ratio.reset();
  for (int i = 1; i <= kLowerings; ++i) {
    spec.budget_tokens = asked.budget_tokens >> i;
    if (*spec.budget_tokens < kLeastBudget) break;
    if (propagation.kind != PropagationKind::kNone && by_rate) {
      spec.tsp_rate = static_cast<double>(propagation.rows) / context.prompt_tokens / (1 << i);
    }
    absl::StatusOr<ResolvedGates> gates = ResolveGates(spec, context, nullptr);
    if (!gates.ok()) break;
    lower.push_back(*std::move(gates));
  }
  return lower;
}

// What prefill remembers of a prompt for other sessions: every row of every layer.
bool LeavesPrefix(const RequestPlan& plan) {
  return plan.turn.has_value() && plan.gates.history == HistoryKind::kKeep &&
         plan.gates.propagation.kind != PropagationKind::kRerun;
}

absl::Status ResolveLength(const ServedModel& model, const v1::Stopping& stopping, RequestPlan* plan) {
  int prompt = static_cast<int>(plan->prompt_ids.size());
  int context = model.shape.context;
  if (prompt == 0) return BadField("prompt", "empty; send at least one token");
  SLUICE_RETURN_IF_ERROR(CheckPromptTokens(model, plan->prompt_ids.size()));
  int room = context - prompt;
  plan->context_bound = !stopping.has_max_tokens() || stopping.max_tokens() > room;
  plan->sampling.set_max_tokens(plan->context_bound ? room : stopping.max_tokens());
  if (plan->sampling.forced_token_ids_size() > plan->sampling.max_tokens()) {
    return BadField(
        "sampling.forced_token_ids",
        absl::StrCat(plan->sampling.forced_token_ids_size(), " ids, above the ", plan->sampling.max_tokens(),
                     " tokens that max_tokens and the context allow"));
  }
  if (plan->sampling.min_tokens() > plan->sampling.max_tokens()) {
    return BadField("stopping.min_tokens",
                    absl::StrCat("above the ", room, " tokens that the context leaves"));
  }
  return absl::OkStatus();
}

template <class Request>
absl::Status FinishPlan(const ServedModel& model, const Request& request, const SessionState* session,
                        const RequestDefaults& defaults, RequestPlan* plan) {
  SLUICE_ASSIGN_OR_RETURN(plan->sampling,
                          ResolveSampling(model, request.sampling(), request.stopping(), request.output()));
  plan->choices = request.sampling().has_n() ? request.sampling().n() : 1;
  if (!request.stopping().ignore_eos()) plan->eos_ids = model.shape.eos_ids;
  plan->stop.assign(request.stopping().stop().begin(), request.stopping().stop().end());
  plan->measure = request.output().compression_loss();
  plan->cache_salt = request.cache_salt();
  SLUICE_RETURN_IF_ERROR(ResolveLength(model, request.stopping(), plan));

  SessionCompression remembered;
  std::string preset = defaults.preset;
  if (session != nullptr) {
    SLUICE_ASSIGN_OR_RETURN(remembered, SessionCompressionFromJson(session->session.compression_json));
    preset = remembered.preset.empty() ? defaults.session_preset : remembered.preset;
  }
  SLUICE_ASSIGN_OR_RETURN(CompressionSpec spec, SpecFromProto(request.compression()));
  if (spec.preset.empty()) spec.preset = preset;
  if (defaults.budget_tokens > 0 && !spec.budget_tokens && !spec.keep_ratio) {
    spec.budget_tokens = defaults.budget_tokens;
  }
  GateContext context =
      GateContextOf(model.shape, static_cast<int>(plan->prompt_ids.size()), plan->sampling.max_tokens());
  context.turn_tokens = plan->turn_tokens;
  context.hsa_pays_from = model.hsa_pays_from;
  absl::StatusOr<ResolvedGates> gates =
      ResolveGates(spec, context, remembered.gates.has_value() ? &*remembered.gates : nullptr);
  if (!gates.ok()) {
    if (!absl::IsInvalidArgument(gates.status())) return gates.status();
    return BadField("compression", absl::StripPrefix(gates.status().message(), "compression: "));
  }
  plan->gates = *std::move(gates);
  SLUICE_ASSIGN_OR_RETURN(plan->slo, SloTermsOf(request.slo()));
  if (request.slo().on_pressure() == v1::Slo::LOWER_BUDGET && session == nullptr) {
    plan->lower_gates = LowerGates(spec, context, plan->gates);
  }
  if (session != nullptr) {
    remembered.preset = session->path.empty() ? spec.preset : preset;
    if (plan->gates.history == HistoryKind::kEvict) remembered.gates = plan->gates;
    plan->turn->compression = std::move(remembered);
  }
  plan->request_id = UuidV7();
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckMessages(const google::protobuf::RepeatedPtrField<v1::Message>& messages,
                           absl::string_view field) {
  if (messages.empty()) return BadField(field, "empty; send at least one message");
  for (int i = 0; i < messages.size(); ++i) {
    const v1::Message& message = messages[i];
    std::string here = absl::StrCat(field, "[", i, "]");
    if (message.role() != "system" && message.role() != "user" && message.role() != "assistant") {
      return BadField(absl::StrCat(here, ".role"),
                      absl::StrCat("\"", message.role(), "\" is not system, user or assistant"));
    }
    if (message.content().empty()) return BadField(absl::StrCat(here, ".content"), "empty; say something");
  }
  if (messages[messages.size() - 1].role() == "assistant") {
    return BadField(field, "the last message is the assistant's; end with the user's");
  }
  return absl::OkStatus();
}

std::vector<TurnMessage> TurnMessagesOf(const google::protobuf::RepeatedPtrField<v1::Message>& messages) {
  std::vector<TurnMessage> out;
  for (const v1::Message& message : messages) out.push_back({message.role(), message.content()});
  return out;
}

absl::Status CheckMetadata(const google::protobuf::Map<std::string, std::string>& metadata) {
  if (metadata.size() > kMaxMetadata) {
    return BadField("metadata", absl::StrCat(metadata.size(), " entries; at most ", kMaxMetadata));
  }
  for (const auto& [key, value] : metadata) {
    if (key.size() + value.size() > kMaxMetadataBytes)
      return BadField("metadata", absl::StrCat("an entry above ", kMaxMetadataBytes, " bytes"));
  }
  return absl::OkStatus();
}

absl::Status CheckModelName(const ServedModel& model, const std::string& name) {
  if (name.empty() || name == model.name) return absl::OkStatus();
  return WithReason(
      absl::NotFoundError(absl::StrCat("model: \"", name, "\" is not served here; \"", model.name, "\" is")),
      "MODEL_NOT_FOUND");
}

absl::Status CheckChat(const ServedModel& model, const v1::ChatRequest& request) {
  SLUICE_RETURN_IF_ERROR(CheckShared(model, request));
  switch (request.context_case()) {
    case v1::ChatRequest::kMessages:
      return CheckMessages(request.messages().messages(), "messages.messages");
    case v1::ChatRequest::kSessionTurn:
      if (request.session_turn().session_id().empty()) return BadField("session_turn.session_id", "empty");
      if (request.sampling().n() > 1) {
        return BadField("sampling.n",
                        "a session goes on from one answer; leave it unset in a session's turn");
      }
      return CheckMessages(request.session_turn().new_messages(), "session_turn.new_messages");
    default:
      return BadField("messages", "set messages or session_turn");
  }
}

absl::StatusOr<RequestPlan> PlanChat(const ServedModel& model, const v1::ChatRequest& request,
                                     const SessionState* session, const RequestDefaults& defaults) {
  SLUICE_RETURN_IF_ERROR(CheckChat(model, request));
  RequestPlan plan;
  TurnPrompt prompt;
  if (session == nullptr) {
    SLUICE_ASSIGN_OR_RETURN(prompt,
                            BuildTurnPrompt(model, {}, TurnMessagesOf(request.messages().messages())));
  } else {
    PlannedTurn turn;
    turn.session_id = session->session.id;
    turn.parent_turn_id = session->session.head_turn_id;
    turn.turn_id = RandomId128();
    turn.messages = TurnMessagesOf(request.session_turn().new_messages());
    turn.home = session->session.home;
    SLUICE_ASSIGN_OR_RETURN(prompt, BuildTurnPrompt(model, session->path, turn.messages));
    plan.turn = std::move(turn);
  }
  plan.prompt_ids = std::move(prompt.ids);
  plan.turn_tokens = prompt.turn_tokens;
  SLUICE_RETURN_IF_ERROR(FinishPlan(model, request, session, defaults, &plan));
  return plan;
}

absl::StatusOr<RequestPlan> PlanComplete(const ServedModel& model, const v1::CompleteRequest& request,
                                         const RequestDefaults& defaults) {
  SLUICE_RETURN_IF_ERROR(CheckShared(model, request));
  RequestPlan plan;
  plan.reply_is_text_of_its_own = false;
  switch (request.input_case()) {
    case v1::CompleteRequest::kPrompt: {
      if (request.prompt().empty()) return BadField("prompt", "empty; send some text");
      SLUICE_RETURN_IF_ERROR(CheckPromptBytes(model, request.prompt().size()));
      SLUICE_ASSIGN_OR_RETURN(plan.prompt_ids,
                              model.tokenizer->Encode(request.prompt(), {.add_special = true}));
      break;
    }
    case v1::CompleteRequest::kPromptTokenIds:
      for (int32_t id : request.prompt_token_ids().ids()) {
        if (id < 0 || id >= model.shape.vocab) {
          return BadField("prompt_token_ids.ids",
                          absl::StrCat(id, " is not in the vocabulary [0, ", model.shape.vocab, ")"));
        }
        plan.prompt_ids.push_back(id);
      }
      if (plan.prompt_ids.empty()) return BadField("prompt_token_ids.ids", "empty; send at least one id");
      break;
    default:
      return BadField("prompt", "set prompt or prompt_token_ids");
  }
  plan.turn_tokens = static_cast<int>(plan.prompt_ids.size());
  SLUICE_RETURN_IF_ERROR(FinishPlan(model, request, nullptr, defaults, &plan));
  return plan;
}

RouteQuery RouteQueryOf(const RequestPlan& plan) {
  RouteQuery query;
  query.tokens = static_cast<int64_t>(plan.prompt_ids.size());
  query.prefix = plan.prefix;
  if (plan.turn.has_value()) {
    query.home = plan.turn->home;
    query.history_tokens = query.tokens - plan.turn_tokens;
  }
  return query;
}

v1::CompressionReport ReportOf(const RequestPlan& plan) {
  v1::CompressionReport report = ReportOf(plan.gates, static_cast<int>(plan.prompt_ids.size()));
  report.set_budget_asked(plan.budget_asked);
  return report;
}

uint64_t ChoiceSeed(uint64_t seed, int choice) {
  if (choice == 0) return seed;
  // Step `choice` of SplitMix64 (Steele, Lea, Flood, OOPSLA 2014), a bijection of the seed for each choice.
  uint64_t z = seed + 0x9E3779B97F4A7C15u * static_cast<uint64_t>(choice);
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}

void SetOwner(const std::string& owner, RequestPlan* plan) {
  plan->owner = owner;
  // No owner's name holds a line feed.
  if (LeavesPrefix(*plan))
    plan->prefix = PrefixHashes(absl::StrCat(owner, "\n", plan->cache_salt), plan->prompt_ids);
}

v1::Sampling EffectiveSampling(const RequestPlan& plan) {
  const internal::v1::SamplingParams& params = plan.sampling;
  v1::Sampling out;
  out.set_n(plan.choices);
  out.set_temperature(params.temperature());
  out.set_top_k(params.top_k());
  out.set_top_p(params.top_p());
  out.set_min_p(params.min_p());
  out.set_repetition_penalty(params.repetition_penalty());
  out.set_presence_penalty(params.presence_penalty());
  out.set_frequency_penalty(params.frequency_penalty());
  out.set_seed(params.seed());
  *out.mutable_logit_bias() = params.logit_bias();
  return out;
}

}  // namespace sluice
