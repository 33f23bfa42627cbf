#include "tests/router/router_fixture.h"

#include <fstream>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/compression/resolved_gates.h"
#include "common/session/memory_store.h"
#include "tests/support/early_logger.h"
#include "tests/support/patience.h"

namespace sluice {
namespace {

constexpr int32_t kEos = 4095;

std::string ReadModelFile(const std::string& name) {
  std::ifstream in(absl::StrCat(SLUICE_SOURCE_DIR, "/models/needle-14m/", name));
  std::stringstream text;
  text << in.rdbuf();
  return text.str();
}

// ChatML, as the model's own template.
std::vector<TextSegment> ChatMl(absl::Span<const TurnMessage> messages, bool add_reply_prefix) {
  std::vector<TextSegment> out;
  for (const TurnMessage& message : messages) {
    out.push_back({absl::StrCat("<|im_start|>", message.role, "\n"), false});
    out.push_back({message.content, true});
    out.push_back({"<|im_end|>\n", false});
  }
  if (add_reply_prefix) out.push_back({"<|im_start|>assistant\n", false});
  return out;
}

}  // namespace

ServedModel SmallModel() {
  ServedModel model;
  model.name = "needle";
  model.shape.family = "llama";
  model.shape.n_layers = 8;
  model.shape.n_q_heads = 6;
  model.shape.n_kv_heads = 2;
  model.shape.head_dim = 64;
  model.shape.vocab = 4096;
  model.shape.context = 512;
  model.shape.sliding_window.assign(8, 0);
  model.shape.eos_ids = {kEos};
  model.tokenizer =
      *Tokenizer::FromJson(ReadModelFile("tokenizer.json"), ReadModelFile("tokenizer_config.json"));
  model.render = ChatMl;
  model.identity.set_name("needle");
  model.identity.set_weights_hash("w");
  model.description.set_id("needle");
  model.description.set_max_logprobs(kDefaultMaxLogprobs);
  return model;
}

RouterTest::RouterTest()
    : registry_({"router", "needle", "test"}),
      metrics_(&registry_, {RouterMethods(), OffCauseNames()}),
      model_(SmallModel()),
      workers_(model_.identity) {
  MakeLogger();
  workers_.SetScript([this](const FakeAttempt& attempt) { attempt.Serve(Reply("hello there")); });
}

void RouterTest::Later(std::function<void()> action) {
  MutexLock lock(&later_mu_);
  later_.emplace_back(std::move(action));
}

RouterTest::~RouterTest() {
  {
    MutexLock lock(&later_mu_);
    for (std::thread& thread : later_) thread.join();
  }
  if (router_ == nullptr) return;
  router_->Stop(absl::Seconds(5));
  EXPECT_EQ(router_->requests_in_flight(), 0);
  for (const Gauge* gauge : {&metrics_.in_flight_queued, &metrics_.in_flight_prefill,
                             &metrics_.in_flight_transfer, &metrics_.in_flight_decode}) {
    EXPECT_EQ(gauge->Value(), 0);
  }
}

void RouterTest::ExpectCounted(const std::string& code) {
  const Counter& counter = metrics_.requests.At("ChatStream").At(code);
  const absl::Time until = absl::Now() + kPatience * absl::Seconds(10);
  while (counter.Value() == 0 && absl::Now() < until) absl::SleepFor(absl::Milliseconds(5));
  EXPECT_EQ(counter.Value(), 1);
}

RouterConfig RouterTest::Config() {
  RouterConfig config;
  config.listen = config.internal_listen = config.admin_listen = "127.0.0.1:0";
  config.run.flow.pair_wait = absl::Seconds(3);
  config.run.flow.busy_wait = absl::Seconds(2);
  return config;
}

void RouterTest::StartRouter(std::unique_ptr<SessionStore> store, std::vector<std::string> workers) {
  if (store == nullptr) store = NewMemoryStore({});
  absl::StatusOr<std::unique_ptr<Router>> router =
      Router::Start(Config(), Model(), std::move(store), &metrics_);
  ASSERT_TRUE(router.ok()) << router.status();
  router_ = *std::move(router);
  grpc::ChannelArguments args;
  args.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  args.SetInt(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, 65536);
  args.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);
  channel_ = grpc::CreateCustomChannel(absl::StrCat("127.0.0.1:", router_->port()),
                                       grpc::InsecureChannelCredentials(), args);
  inference_ = v1::Inference::NewStub(channel_);
  sessions_ = v1::Sessions::NewStub(channel_);
  admin_ = v1::Admin::NewStub(grpc::CreateChannel(absl::StrCat("127.0.0.1:", router_->admin_port()),
                                                  grpc::InsecureChannelCredentials()));
  int prefill = 0, decode = 0;
  for (const std::string& name : workers) {
    AddWorker(name);
    ++(name[0] == 'p' ? prefill : decode);
  }
  AwaitWorkers(prefill, decode);
}

void RouterTest::AddWorker(const std::string& name) {
  workers_.Add(name[0] == 'p' ? "prefill" : "decode", name, router_->internal_port());
}

void RouterTest::AwaitWorkers(int prefill, int decode) {
  absl::Time until = absl::Now() + absl::Seconds(20);
  while (metrics_.prefill_workers.ready.Value() != prefill ||
         metrics_.decode_workers.ready.Value() != decode) {
    ASSERT_LT(absl::Now(), until) << "workers did not register";
    absl::SleepFor(absl::Milliseconds(5));
  }
}

bool RouterTest::Eventually(const std::function<bool()>& condition) {
  const absl::Time until = absl::Now() + kPatience * absl::Seconds(10);
  while (!condition()) {
    if (absl::Now() > until) return false;
    absl::SleepFor(absl::Milliseconds(5));
  }
  return true;
}

v1::ChatRequest RouterTest::Ask(const std::string& text) {
  v1::ChatRequest request;
  v1::Message* message = request.mutable_messages()->add_messages();
  message->set_role("user");
  message->set_content(text);
  request.mutable_sampling()->set_temperature(0);
  return request;
}

v1::ChatRequest RouterTest::AskIn(const std::string& session_id, const std::string& text) {
  v1::ChatRequest request;
  request.mutable_session_turn()->set_session_id(session_id);
  v1::Message* message = request.mutable_session_turn()->add_new_messages();
  message->set_role("user");
  message->set_content(text);
  return request;
}

SeenReply RouterTest::Stream(const v1::ChatRequest& request, grpc::ClientContext* context) {
  grpc::ClientContext own;
  SeenReply seen;
  std::unique_ptr<grpc::ClientReader<v1::ChatEvent>> reader =
      inference_->ChatStream(context == nullptr ? &own : context, request);
  v1::ChatEvent event;
  while (reader->Read(&event)) {
    EXPECT_EQ(event.seq(), seen.events.size());
    EXPECT_EQ(seen.terminals, 0) << "an event after Done";
    seen.events.push_back(event);
    if (event.has_delta()) {
      seen.text += event.delta().text();
      seen.ids.insert(seen.ids.end(), event.delta().token_ids().begin(), event.delta().token_ids().end());
    }
    if (event.has_done()) {
      seen.done = event.done();
      ++seen.terminals;
    }
  }
  seen.status = reader->Finish();
  EXPECT_EQ(seen.status.ok(), seen.terminals == 1);
  return seen;
}

std::vector<int32_t> RouterTest::Reply(const std::string& text, bool eos) {
  std::vector<int32_t> ids = *model_.tokenizer->Encode(text);
  if (eos) ids.push_back(kEos);
  return ids;
}

}  // namespace sluice
