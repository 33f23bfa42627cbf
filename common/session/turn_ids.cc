#include "common/session/turn_ids.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace sluice {

std::string EncodeIds(absl::Span<const int32_t> ids) {
  std::string blob;
  blob.reserve(ids.size() * 4);
  for (int32_t id : ids) {
    uint32_t bits = static_cast<uint32_t>(id);
    for (int shift = 0; shift < 32; shift += 8) blob.push_back(static_cast<char>(bits >> shift & 0xff));
  }
  return blob;
}

std::vector<int32_t> DecodeIds(absl::string_view blob) {
  std::vector<int32_t> ids(blob.size() / 4);
  for (size_t i = 0; i < ids.size(); ++i) {
    uint32_t bits = 0;
    for (size_t byte = 0; byte < 4; ++byte) {
      bits |= static_cast<uint32_t>(static_cast<uint8_t>(blob[i * 4 + byte])) << (8 * byte);
    }
    ids[i] = static_cast<int32_t>(bits);
  }
  return ids;
}

int64_t SharedIds(absl::Span<const int32_t> before, absl::Span<const int32_t> prompt) {
  const auto end = before.begin() + std::min(before.size(), prompt.size());
  return std::mismatch(before.begin(), end, prompt.begin()).first - before.begin();
}

StoredPrompt StorePrompt(absl::Span<const int32_t> before, absl::Span<const int32_t> prompt) {
  const int64_t shared = SharedIds(before, prompt);
  return {shared, EncodeIds(prompt.subspan(shared))};
}

absl::StatusOr<std::vector<int32_t>> RestorePrompt(absl::Span<const int32_t> before, int64_t shared,
                                                   absl::string_view rest) {
  if (shared < 0 || shared > static_cast<int64_t>(before.size())) {
    return absl::DataLossError(
        absl::StrCat("shares ", shared, " token ids with its parent, which has ", before.size()));
  }
  std::vector<int32_t> prompt(before.begin(), before.begin() + shared);
  const std::vector<int32_t> own = DecodeIds(rest);
  prompt.insert(prompt.end(), own.begin(), own.end());
  return prompt;
}

}  // namespace sluice
