// Role: the ReplySink of a request over HTTP: a stream of events, or one object, whichever the request asked
// for, and its error where there is one. The head of a stream waits for the first text, so that what fails
// before it has its HTTP code. Threads: ReplySink's methods on the run's strand, the watcher's on the
// server's.
#pragma once

#include <memory>
#include <optional>

#include "common/base/mutex.h"
#include "router/http/http_exchange.h"
#include "router/http/openai_fields.h"
#include "router/http/openai_reply.h"
#include "router/request_run.h"

namespace sluice {

class HttpReply final : public ReplySink,
                        public HttpExchange::Watcher,
                        public std::enable_shared_from_this<HttpReply> {
 public:
  // shape: what the request says of its answer is in it before the first event.
  HttpReply(std::shared_ptr<HttpExchange> exchange, OpenAiEndpoint endpoint,
            std::shared_ptr<const OpenAiShape> shape);

  // Before the run starts. Lives until Finish by itself.
  void Attach(std::shared_ptr<RequestRun> run);

  void Send(const v1::ChatEvent& event) override;
  void Finish(const absl::Status& status) override;
  size_t backlog_bytes() const override;

  void ClientGone() override;
  void ClientTook() override;

 private:
  std::shared_ptr<RequestRun> run() const;
  void Fail(const absl::Status& status);

  const std::shared_ptr<HttpExchange> exchange_;
  const OpenAiEndpoint endpoint_;
  const std::shared_ptr<const OpenAiShape> shape_;
  std::optional<OpenAiReply> reply_;  // from the first event on
  bool streaming_ = false;            // its head is sent

  mutable Mutex mu_;
  std::shared_ptr<RequestRun> run_ ABSL_GUARDED_BY(mu_);
  std::shared_ptr<HttpReply> self_ ABSL_GUARDED_BY(mu_);
};

}  // namespace sluice
