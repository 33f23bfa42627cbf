// Role: GPT-2's printable stand-ins for the 256 bytes, in which byte-level vocabularies are written ("Ġ" is
// the space). Pure functions over one static table.
#pragma once

#include <optional>
#include <string>

#include "absl/strings/string_view.h"

namespace sluice {

// The bytes that `token` stands for; nullopt if it holds a character outside the alphabet.
std::optional<std::string> BytesOfAlphabetText(absl::string_view token);

}  // namespace sluice
