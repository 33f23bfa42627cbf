// Role: the whole command, from its words to its exit code. Threads: main.
#pragma once

#include "client/console.h"

namespace sluice {

// 0 ok, 1 failure, 2 usage, 130 interrupted.
int RunCommandLine(int argc, const char* const* argv, const Console& console);

}  // namespace sluice
