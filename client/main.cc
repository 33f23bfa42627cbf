// sluice: the command people type.
#include <signal.h>

#include "client/command_line.h"

int main(int argc, char** argv) {
  signal(SIGPIPE, SIG_IGN);  // a closed pipe is a failed write, which the command reports
  return sluice::RunCommandLine(argc, argv, sluice::ProcessConsole());
}
