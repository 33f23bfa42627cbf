// Role: names a process so that another one of the same host can prove that it has ended. Why: a process that
// mapped memory of ours may write it for as long as it lives, whatever happens to its connections. Threads:
// any.
#pragma once

#include <string>

#include "absl/strings/string_view.h"

namespace sluice {

// Boot of the host, namespace of process ids, id and start time: one line, never used twice.
std::string ProcessMark();

bool OfThisHost(absl::string_view mark);

// True only when proven: the process of that mark has given its memory and files back, or is this one. False
// for a mark of another host or another namespace.
bool ProcessIsGone(absl::string_view mark);

}  // namespace sluice
