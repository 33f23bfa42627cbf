#include "router/http/http_reply.h"

#include <utility>

#include "absl/time/clock.h"
#include "router/http/openai_error.h"

namespace sluice {

HttpReply::HttpReply(std::shared_ptr<HttpExchange> exchange, OpenAiEndpoint endpoint,
                     std::shared_ptr<const OpenAiShape> shape)
    : exchange_(std::move(exchange)), endpoint_(endpoint), shape_(std::move(shape)) {}

void HttpReply::Attach(std::shared_ptr<RequestRun> run) {
  {
    MutexLock lock(&mu_);
    run_ = std::move(run);
    self_ = shared_from_this();
  }
  exchange_->Watch(shared_from_this());
}

void HttpReply::Send(const v1::ChatEvent& event) {
  if (!reply_.has_value()) reply_.emplace(*shape_, absl::ToUnixSeconds(absl::Now()));
  const std::string text = reply_->Take(event);
  if (text.empty()) return;
  if (!std::exchange(streaming_, true)) {
    exchange_->BeginStream(kEventStreamType,
                           {{"Cache-Control", "no-cache"}, {"x-request-id", reply_->request_id()}});
  }
  exchange_->Push(text);
}

void HttpReply::Finish(const absl::Status& status) {
  std::shared_ptr<RequestRun> run;  // let go outside of the lock
  std::shared_ptr<HttpReply> self;
  {
    MutexLock lock(&mu_);
    run = std::move(run_);
    self = std::move(self_);
  }
  if (!status.ok()) return Fail(status);
  if (streaming_) {
    exchange_->Push("data: [DONE]\n\n");
    return exchange_->End();
  }
  HttpResponse response;
  response.body = reply_->Whole();
  response.headers = {{"x-request-id", reply_->request_id()}};
  exchange_->Respond(std::move(response));
}

void HttpReply::Fail(const absl::Status& status) {
  if (!streaming_) return exchange_->Respond(ErrorResponse(endpoint_, status));
  // Who does not read what came before does not read this.
  if (exchange_->backlog_bytes() > 0) return exchange_->Abort();
  exchange_->Push("data: " + Dump(ErrorJson(endpoint_, status)) + "\n\n");  // and no [DONE]
  exchange_->End();
}

size_t HttpReply::backlog_bytes() const { return streaming_ ? exchange_->backlog_bytes() : 0; }

std::shared_ptr<RequestRun> HttpReply::run() const {
  MutexLock lock(&mu_);
  return run_;
}

void HttpReply::ClientGone() {
  if (std::shared_ptr<RequestRun> held = run()) held->ClientGone();
}

void HttpReply::ClientTook() {
  if (std::shared_ptr<RequestRun> held = run()) held->Drained();
}

}  // namespace sluice
