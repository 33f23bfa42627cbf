#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <nlohmann/json.hpp>
#include <thread>

#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "common/rpc/status_codec.h"
#include "tests/client/client_run.h"
#include "tests/client/fake_router.h"
#include "tests/support/temp_dir.h"

namespace sluice {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

class ChatTest : public ::testing::Test {
 protected:
  // `run` comes first: it blocks the signals before gRPC starts threads.
  ClientRun run;
  FakeRouter router;
  TempDir dir;

  int Chat(std::vector<std::string> words) {
    words.insert(words.begin(), {"chat", "--router", router.address(), "--timeout", "30"});
    return run.Run(words);
  }
};

TEST_F(ChatTest, JsonIsOneLineATurnWithExactlyTheseKeys) {
  ASSERT_EQ(Chat({"--ask", "first", "--ask", "second", "--json"}), 0);
  std::vector<std::string> lines = absl::StrSplit(run.out(), '\n', absl::SkipEmpty());
  ASSERT_EQ(lines.size(), 2);
  nlohmann::ordered_json turn = nlohmann::ordered_json::parse(lines[0]);
  std::vector<std::string> keys;
  for (const auto& [key, value] : turn.items()) keys.push_back(key);
  EXPECT_THAT(keys, ElementsAre("answer", "prompt_tokens", "cached_tokens", "kept_tokens_mean", "read_tokens",
                                "kv_bytes_full", "kv_bytes_kept", "wire_bytes", "ttft_seconds",
                                "tpot_seconds", "method", "off_reason", "finish_reason", "session_id"));
  EXPECT_EQ(turn["answer"], "you said first");
  EXPECT_EQ(turn["prompt_tokens"], 1000);
  EXPECT_EQ(turn["cached_tokens"], 600);
  EXPECT_DOUBLE_EQ(turn["kept_tokens_mean"], 256.25);
  EXPECT_EQ(turn["read_tokens"], 128);
  EXPECT_EQ(turn["kv_bytes_full"], 8000000);
  EXPECT_EQ(turn["kv_bytes_kept"], 2000000);
  EXPECT_EQ(turn["wire_bytes"], 2100000);
  EXPECT_DOUBLE_EQ(turn["ttft_seconds"], 0.5);
  EXPECT_DOUBLE_EQ(turn["tpot_seconds"], 0.02);  // 0.08 s for the 4 tokens of decode
  EXPECT_EQ(turn["method"], "sluice-mt");
  EXPECT_EQ(turn["finish_reason"], "STOP_EOS");
  EXPECT_EQ(turn["session_id"], "s1");
  EXPECT_EQ(nlohmann::json::parse(lines[1])["answer"], "you said second");
}

TEST_F(ChatTest, AsksAreTurnsOfOneSessionAndTheDocumentLeadsTheFirst) {
  std::string file = dir.Write("doc.txt", "the document");
  ASSERT_EQ(Chat({"--file",   file,     "--ask",    "one", "--ask",        "two", "--system", "be brief",
                  "--preset", "snapkv", "--budget", "64",  "--max-tokens", "7",   "--top-k",  "3",
                  "--seed",   "9",      "--stop",   "END", "--stop",       "FIN"}),
            0);
  std::vector<v1::ChatRequest> chats = router.chats();
  ASSERT_EQ(chats.size(), 2);
  const v1::SessionTurn& first = chats[0].session_turn();
  ASSERT_EQ(first.new_messages_size(), 2);
  EXPECT_EQ(first.new_messages(0).role(), "system");
  EXPECT_EQ(first.new_messages(0).content(), "be brief");
  EXPECT_EQ(first.new_messages(1).content(), "the document\none");
  const v1::SessionTurn& second = chats[1].session_turn();
  ASSERT_EQ(second.new_messages_size(), 1);
  EXPECT_EQ(second.new_messages(0).role(), "user");
  EXPECT_EQ(second.new_messages(0).content(), "two");
  EXPECT_EQ(first.session_id(), second.session_id());
  EXPECT_EQ(router.sessions()[first.session_id()], 2);

  EXPECT_EQ(chats[0].compression().preset(), "snapkv");
  EXPECT_EQ(chats[0].compression().budget_tokens(), 64);
  EXPECT_EQ(chats[0].stopping().max_tokens(), 7);
  EXPECT_THAT(chats[0].stopping().stop(), ElementsAre("END", "FIN"));
  EXPECT_EQ(chats[0].sampling().temperature(), 0);
  EXPECT_EQ(chats[0].sampling().top_k(), 3);
  EXPECT_EQ(chats[0].sampling().seed(), 9);
  EXPECT_FALSE(chats[0].sampling().has_top_p());
}

TEST_F(ChatTest, WithoutJsonTheAnswerIsStdoutAndOneStatisticsLineStderr) {
  ASSERT_EQ(Chat({"--ask", "hello"}), 0);
  EXPECT_EQ(run.out(), "you said hello\n");
  EXPECT_THAT(run.err(),
              HasSubstr("1000 tokens in (600 known), 5 out; kept 256 a head, 128 read a step; 2.1 MB KV "
                        "sent of 8.0 MB (3.8x less); first token 0.50 s, then 20.0 ms each; sluice-mt\n"));
  EXPECT_FALSE(router.chats()[0].compression().has_preset());
}

TEST_F(ChatTest, LinesOfAPipeAreTurnsWithoutAPrompt) {
  run.Type("one\n\ntwo");
  run.CloseInput();
  ASSERT_EQ(Chat({}), 0);
  EXPECT_EQ(run.out(), "you said one\nyou said two\n");
  EXPECT_THAT(run.err(), Not(HasSubstr("> ")));
}

TEST_F(ChatTest, CommandsOfTheDialogue) {
  run.in_tty = true;
  std::string file = dir.Write("doc.txt", "text");
  run.Type("/stats\nhi\n/stats\n/fork\nmore\n/reset\n/stats\n/file " + file +
           "\nask\n/file /no/such\n/what\n/quit\nnever\n");
  ASSERT_EQ(Chat({}), 0);
  EXPECT_THAT(run.err(), StartsWith("/help lists the commands\n> /stats: nothing is answered yet\n> "));
  EXPECT_EQ(run.out(), "you said hi\nyou said more\nyou said ask\n");
  EXPECT_THAT(run.err(), HasSubstr("1000 tokens in"));
  EXPECT_THAT(run.err(), HasSubstr("a new session\n> /stats: nothing is answered yet"));
  EXPECT_THAT(run.err(), HasSubstr("/file /no/such: No such file or directory"));
  EXPECT_THAT(run.err(), HasSubstr("/what is no command; /help lists them"));
  std::vector<v1::ChatRequest> chats = router.chats();
  ASSERT_EQ(chats.size(), 3);
  EXPECT_EQ(chats[0].session_turn().session_id(), "s1");
  EXPECT_EQ(chats[1].session_turn().session_id(), "s2");  // the fork
  EXPECT_EQ(chats[2].session_turn().session_id(), "s3");  // after the reset
  EXPECT_EQ(chats[2].session_turn().new_messages(0).content(), "text\nask");
}

TEST_F(ChatTest, CtrlCCancelsTheTurnAndTheNextOneAtThePromptLeaves) {
  run.in_tty = true;
  router.Hang();
  run.Type("/file " + dir.Write("doc.txt", "text") + "\nslow\n");
  std::thread user([&] {
    EXPECT_TRUE(run.out_text().WaitFor("you"));
    kill(getpid(), SIGINT);
    EXPECT_TRUE(run.err_text().WaitFor("interrupted"));
    run.Type("again\n/stats\n");
    EXPECT_TRUE(run.err_text().WaitFor("session s1"));  // the turn is over
    kill(getpid(), SIGINT);
    EXPECT_TRUE(run.err_text().WaitFor("Ctrl-C again leaves"));
    kill(getpid(), SIGINT);
  });
  EXPECT_EQ(Chat({}), 130);
  user.join();
  // The server hears of it a moment later than the client is done.
  const absl::Time end = absl::Now() + absl::Seconds(10);
  while (router.cancelled() == 0 && absl::Now() < end) absl::SleepFor(absl::Milliseconds(1));
  EXPECT_EQ(router.cancelled(), 1);
  // The document of a cancelled turn is still to come.
  EXPECT_EQ(router.chats()[1].session_turn().new_messages(0).content(), "text\nagain");
}

TEST_F(ChatTest, CtrlCEndsAskWith130) {
  router.Hang();
  std::thread user([&] {
    EXPECT_TRUE(run.out_text().WaitFor("you"));
    kill(getpid(), SIGINT);
  });
  EXPECT_EQ(Chat({"--ask", "slow", "--ask", "never"}), 130);
  user.join();
  EXPECT_EQ(router.chats().size(), 1);
}

TEST_F(ChatTest, ContinuesASessionAndRefusesASystemMessageThere) {
  ASSERT_EQ(Chat({"--ask", "one"}), 0);
  ASSERT_EQ(Chat({"--session", "s1", "--ask", "two"}), 0);
  EXPECT_EQ(router.sessions()["s1"], 2);
  EXPECT_EQ(Chat({"--session", "s1", "--system", "be brief", "--ask", "three"}), 1);
  EXPECT_THAT(run.err(), HasSubstr("--system: session s1 has turns already"));
  EXPECT_EQ(Chat({"--session", "s9", "--ask", "x"}), 1);
  EXPECT_THAT(run.err(), HasSubstr("NOT_FOUND from " + router.address() + ": no session s9"));
}

TEST_F(ChatTest, ServerErrorsShowStatusReasonDelayAndTheFlag) {
  router.FailWith(WithRetryAfter(WithReason(absl::ResourceExhaustedError("too many requests"), "QUEUE_FULL"),
                                 absl::Seconds(2)));
  EXPECT_EQ(Chat({"--ask", "x"}), 1);
  EXPECT_THAT(run.err(), HasSubstr("RESOURCE_EXHAUSTED from " + router.address() +
                                   ": too many requests\n  reason: QUEUE_FULL\n  try again after: 2s\n"));
  router.FailWith(BadField("stopping.max_tokens", "above the context"));
  EXPECT_EQ(Chat({"--ask", "x"}), 1);
  EXPECT_THAT(run.err(), HasSubstr("INVALID_ARGUMENT"));
  EXPECT_THAT(run.err(), HasSubstr("change --max-tokens"));
  EXPECT_EQ(router.sessions().count("s2"), 0);  // a refused first turn leaves no session behind
}

TEST_F(ChatTest, TerminalsGetNoControlCharacters) {
  router.AnswerWith("a\x1b[2Jb\tc\n");
  ASSERT_EQ(Chat({"--ask", "x"}), 0);
  EXPECT_EQ(run.out(), "a\x1b[2Jb\tc\n\n");
  run.out_tty = true;
  ASSERT_EQ(Chat({"--ask", "x"}), 0);
  EXPECT_THAT(run.out(), HasSubstr("\n\na[2Jb\tc\n"));
}

TEST_F(ChatTest, InputThatIsNotUtf8IsRefusedByName) {
  EXPECT_EQ(Chat({"--file", dir.Write("bad.txt", "ab\xFF"), "--ask", "x"}), 1);
  EXPECT_THAT(run.err(), HasSubstr("bad.txt: byte 2 is not UTF-8"));
  EXPECT_EQ(Chat({"--file", dir.Write("empty.txt", ""), "--ask", "x"}), 1);
  EXPECT_THAT(run.err(), HasSubstr("empty.txt: empty"));
  EXPECT_TRUE(router.chats().empty());
}

TEST_F(ChatTest, NobodyThereNamesRouterAndUp) {
  EXPECT_EQ(run.Run({"chat", "--router", "127.0.0.1:1", "--ask", "x"}), 1);
  EXPECT_THAT(run.err(), HasSubstr("UNAVAILABLE from 127.0.0.1:1"));
  EXPECT_THAT(run.err(), HasSubstr("sluice up"));
  EXPECT_THAT(run.err(), HasSubstr("--router"));
  EXPECT_EQ(run.Run({"chat", "--router", "nonsense", "--ask", "x"}), 1);
  EXPECT_THAT(run.err(), HasSubstr("--router: want host:port"));
}

TEST_F(ChatTest, ARouterThatAnswersUnavailableIsNotLookedFor) {
  for (const absl::Status& status :
       {WithRetryAfter(WithReason(absl::UnavailableError("no ready decode worker"), "NO_READY_WORKER"),
                       absl::Seconds(1)),
        absl::UnavailableError("the router is stopping")}) {
    router.FailWith(status);
    EXPECT_EQ(Chat({"--ask", "x"}), 1);
    EXPECT_THAT(run.err(),
                HasSubstr("UNAVAILABLE from " + router.address() + ": " + std::string(status.message())));
    EXPECT_THAT(run.err(), HasSubstr("sluice doctor tells what is missing"));
    EXPECT_THAT(run.err(), Not(HasSubstr("is a router serving")));
  }
  router.server()->Stop(absl::ZeroDuration());
  EXPECT_EQ(Chat({"--ask", "x"}), 1);
  EXPECT_THAT(run.err(), HasSubstr("is a router serving at " + router.address()));
}

TEST_F(ChatTest, ADeadlineNamesTimeout) {
  router.Hang();
  EXPECT_EQ(run.Run({"chat", "--router", router.address(), "--timeout", "0.5", "--ask", "x"}), 1);
  EXPECT_THAT(run.err(), HasSubstr("DEADLINE_EXCEEDED"));
  EXPECT_THAT(run.err(), HasSubstr("raise --timeout"));
}

}  // namespace
}  // namespace sluice
