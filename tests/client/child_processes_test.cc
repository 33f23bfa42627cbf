#include "client/child_processes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>

#include "absl/time/clock.h"
#include "common/rpc/stop_signals.h"
#include "tests/support/temp_dir.h"

namespace sluice {
namespace {

using ::testing::ElementsAre;
using ::testing::Field;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class ChildProcessesTest : public ::testing::Test {
 protected:
  TempDir dir;
  ChildProcesses children;

  ChildSpec Shell(const std::string& name, const std::string& script) {
    return {name, "/bin/sh", {"-c", script}, dir.path() + "/" + name + ".log"};
  }
  ChildExit WaitForExit() {
    for (int i = 0; i < 3000; ++i) {
      if (std::optional<ChildExit> exit = children.PollExit()) return *exit;
      absl::SleepFor(absl::Milliseconds(10));
    }
    ADD_FAILURE() << "no child ended";
    return {};
  }
  bool WaitForFile(const std::string& name) {
    for (int i = 0; i < 3000 && !std::filesystem::exists(dir.path() + "/" + name); ++i) {
      absl::SleepFor(absl::Milliseconds(10));
    }
    return std::filesystem::exists(dir.path() + "/" + name);
  }
};

TEST_F(ChildProcessesTest, TellsWhoEndedAndHowAndKeepsTheLog) {
  ASSERT_TRUE(children.Start(Shell("long", "exec sleep 100")).ok());
  ASSERT_TRUE(children.Start(Shell("short", "echo one; echo two >&2; exit 3")).ok());
  ChildExit exit = WaitForExit();
  EXPECT_EQ(exit.name, "short");
  EXPECT_EQ(DescribeExit(exit.wait_status), "exited with code 3");
  EXPECT_EQ(TailOf(exit.log, 1), "two");
  EXPECT_EQ(TailOf(exit.log, 9), "one\ntwo");
  EXPECT_EQ(children.pids().size(), 1);
}

TEST_F(ChildProcessesTest, StopTerminatesAndKillsTheDeaf) {
  BlockStopSignals();  // as `up` does: children must not inherit it
  ASSERT_TRUE(children.Start(Shell("polite", "exec sleep 100")).ok());
  ASSERT_TRUE(
      children
          .Start(Shell("deaf", "trap '' TERM; touch " + dir.path() + "/deaf; while :; do sleep 0.1; done"))
          .ok());
  ASSERT_TRUE(WaitForFile("deaf"));
  EXPECT_THAT(children.Stop(absl::Milliseconds(500)), ElementsAre(Field(&ChildExit::name, "deaf")));
  EXPECT_THAT(children.pids(), IsEmpty());
}

TEST_F(ChildProcessesTest, StopTellsOfACrash) {
  ASSERT_TRUE(children
                  .Start(Shell("crasher", "trap 'kill -ABRT $$' TERM; touch " + dir.path() +
                                              "/armed; while :; do sleep 0.1; done"))
                  .ok());
  ASSERT_TRUE(WaitForFile("armed"));
  const std::vector<ChildExit> badly = children.Stop(absl::Seconds(10));
  ASSERT_EQ(badly.size(), 1);
  EXPECT_EQ(DescribeExit(badly[0].wait_status), "was killed by signal 6");
}

TEST_F(ChildProcessesTest, AProgramThatCannotRunIsNotFound) {
  absl::Status status = children.Start({"x", dir.path() + "/none", {}, dir.path() + "/x.log"});
  EXPECT_TRUE(absl::IsNotFound(status));
  EXPECT_THAT(std::string(status.message()), HasSubstr("/none: No such file"));
  EXPECT_THAT(children.pids(), IsEmpty());
  status = children.Start({"x", "/bin/sh", {}, dir.path() + "/no/dir/x.log"});
  EXPECT_THAT(std::string(status.message()), HasSubstr("--log-dir"));
}

TEST_F(ChildProcessesTest, ChildrenDieWithTheirParent) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  const pid_t parent = fork();
  if (parent == 0) {
    ChildProcesses grandchildren;
    if (!grandchildren.Start(Shell("orphan", "exec sleep 100")).ok()) _exit(1);
    const pid_t pid = grandchildren.pids()[0];
    if (write(ends[1], &pid, sizeof(pid)) != sizeof(pid)) _exit(1);
    pause();
  }
  pid_t orphan = 0;
  ASSERT_EQ(read(ends[0], &orphan, sizeof(orphan)), static_cast<ssize_t>(sizeof(orphan)));
  close(ends[0]);
  close(ends[1]);
  ASSERT_EQ(kill(orphan, 0), 0);
  kill(parent, SIGKILL);
  waitpid(parent, nullptr, 0);
  // A zombie that its new parent has not collected yet is dead too.
  const std::string stat = "/proc/" + std::to_string(orphan) + "/stat";
  bool dead = false;
  for (int i = 0; i < 3000 && !dead; ++i) {
    const std::string text = TailOf(stat, 1);
    dead = text.empty() || text.find(") Z") != std::string::npos;
    if (!dead) absl::SleepFor(absl::Milliseconds(10));
  }
  EXPECT_TRUE(dead);
}

}  // namespace
}  // namespace sluice
