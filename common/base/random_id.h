// Role: unguessable ids: 128 random bits from the kernel.
#pragma once

#include <string>

namespace sluice {

// 32 lower-case hex digits.
std::string RandomId128();

// UUIDv7 (RFC 9562): time-ordered, for handoff ids, which people read in logs.
std::string UuidV7();

}  // namespace sluice
