// Which worker gets a request, through real RPC.
#include <gmock/gmock.h>

#include "absl/strings/str_cat.h"
#include "tests/router/router_fixture.h"

namespace sluice {
namespace {

class RoutingTest : public RouterTest {
 protected:
  RouterConfig Config() override {
    RouterConfig config = RouterTest::Config();
    config.cluster.lease = absl::Seconds(3);  // workers report every second
    return config;
  }
  static internal::v1::WorkerLoad Ahead(int64_t tokens) {
    internal::v1::WorkerLoad load;
    load.set_queued_tokens(tokens);
    return load;
  }
  void SetLoad(const std::string& name, int64_t tokens) {
    workers_.SetLoad(name, Ahead(tokens));
    ASSERT_TRUE(Eventually([&] {
      grpc::ClientContext context;
      v1::ListWorkersResponse list;
      if (!admin_->ListWorkers(&context, {}, &list).ok()) return false;
      for (const v1::Worker& worker : list.workers()) {
        if (worker.name() == name) return worker.queued_tokens() == tokens;
      }
      return false;
    }));
  }
  // Text of about so many tokens.
  std::string Document(size_t tokens) {
    std::string text;
    for (int i = 0; model_.tokenizer->Encode(text)->size() < tokens; ++i)
      absl::StrAppend(&text, " word", i % 10);
    return text;
  }
  // Where the first turn of a new session goes.
  std::string PrefillOf(const std::string& text) {
    grpc::ClientContext context;
    v1::Session session;
    EXPECT_TRUE(sessions_->CreateSession(&context, {}, &session).ok());
    EXPECT_TRUE(Stream(AskIn(session.id(), text)).status.ok());
    // A worker's own share of the load ends with its call, which may be after its reply.
    EXPECT_TRUE(Eventually([&] { return router_->requests_in_flight() == 0; }));
    return workers_.attempts().back().prefill_name;
  }
};

TEST_F(RoutingTest, ASharedBeginningGoesWhereItIsRememberedUntilThatIsFlushed) {
  const std::string document = Document(300);
  workers_.SetLoad("p1", Ahead(100));
  StartRouter();
  ASSERT_EQ(PrefillOf(document + " one?"), "p2");
  ASSERT_GT(workers_.attempts()[0].prefill_request.prompt_ids_size(), 256);
  SetLoad("p2", 200);  // less than what the document's first block saves
  EXPECT_EQ(PrefillOf(document + " two?"), "p2");
  EXPECT_EQ(PrefillOf("Something else. " + document), "p1");
  grpc::ClientContext context;
  v1::FlushCacheRequest flush;
  flush.set_worker("p2");
  v1::FlushCacheResponse flushed;
  ASSERT_TRUE(admin_->FlushCache(&context, flush, &flushed).ok());
  EXPECT_EQ(PrefillOf(document + " three?"), "p1");
}

}  // namespace
}  // namespace sluice
