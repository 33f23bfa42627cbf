// Role: what the model's tokenizer and chat template make of a text, for clients that count, cut or look: no
// worker is asked, and the model's context is no bound. Why it exists: a client that counts with another
// tokenizer counts wrong. Threads: pure functions; a long text takes a while, so never on a gRPC thread.
#pragma once

#include <cstddef>

#include "absl/status/statusor.h"
#include "router/served_model.h"
#include "sluice/v1/inference.pb.h"

namespace sluice {

inline constexpr size_t kMaxCalledTextBytes = 4 << 20;
inline constexpr int kMaxCalledIds = 1 << 20;

// NotFound: another model. InvalidArgument names the field.
absl::StatusOr<v1::TokenizeResponse> Tokenize(const ServedModel& model, const v1::TokenizeRequest& request);
absl::StatusOr<v1::DetokenizeResponse> Detokenize(const ServedModel& model,
                                                  const v1::DetokenizeRequest& request);
absl::StatusOr<v1::RenderTemplateResponse> RenderTemplate(const ServedModel& model,
                                                          const v1::RenderTemplateRequest& request);
absl::StatusOr<v1::CountTokensResponse> CountTokens(const ServedModel& model,
                                                    const v1::CountTokensRequest& request);

}  // namespace sluice
