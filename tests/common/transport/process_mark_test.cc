#include "common/transport/process_mark.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

namespace sluice {
namespace {

// A child that says its mark, then waits to be killed.
struct Child {
  pid_t pid;
  std::string mark;
};
Child Start() {
  int out[2];
  EXPECT_EQ(pipe(out), 0);
  const pid_t pid = fork();
  if (pid == 0) {
    const std::string self = ProcessMark();
    if (write(out[1], self.data(), self.size()) < 0) _exit(1);
    close(out[1]);
    for (;;) pause();
  }
  close(out[1]);
  std::string mark(256, 0);
  mark.resize(static_cast<size_t>(std::max<ssize_t>(0, read(out[0], mark.data(), mark.size()))));
  close(out[0]);
  return {pid, mark};
}

TEST(ProcessMark, AProcessIsGoneWhenItIsKilledEvenAsAZombie) {
  const Child child = Start();
  EXPECT_FALSE(ProcessIsGone(child.mark)) << child.mark;
  kill(child.pid, SIGKILL);
  const absl::Time end = absl::Now() + absl::Seconds(20);
  while (!ProcessIsGone(child.mark) && absl::Now() < end) absl::SleepFor(absl::Milliseconds(1));
  EXPECT_TRUE(ProcessIsGone(child.mark));  // nobody has waited for it yet
  waitpid(child.pid, nullptr, 0);
  EXPECT_TRUE(ProcessIsGone(child.mark));
}

TEST(ProcessMark, NothingIsProvenAcrossHostsNorByNonsense) {
  const Child child = Start();
  kill(child.pid, SIGKILL);
  waitpid(child.pid, nullptr, 0);
  ASSERT_TRUE(ProcessIsGone(child.mark));
  std::string elsewhere = child.mark;
  elsewhere[0] = elsewhere[0] == 'a' ? 'b' : 'a';
  EXPECT_FALSE(ProcessIsGone(elsewhere));
  EXPECT_TRUE(OfThisHost(child.mark));
  EXPECT_FALSE(OfThisHost(elsewhere));
  EXPECT_FALSE(OfThisHost(""));
  for (const char* mark : {"", "x", "a b c d", "    "}) EXPECT_FALSE(ProcessIsGone(mark)) << mark;
}

TEST(ProcessMark, AnotherProcessUnderTheSameIdIsAnother) {
  const std::string self = ProcessMark();
  EXPECT_TRUE(ProcessIsGone(self));  // nothing of ours needs a proof
  EXPECT_TRUE(ProcessIsGone(absl::StrCat(self, "0")));
}

}  // namespace
}  // namespace sluice
