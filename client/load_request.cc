#include "client/load_request.h"

#include <utility>

#include "common/base/clock.h"

namespace sluice {

void LoadRequest::Start(v1::Inference::Stub* stub, std::function<void()> done) {
  done_ = std::move(done);
  connection_.SetDeadline(&context_);
  record_.sent = SteadyClock().Now() - origin_;
  stub->async()->ChatStream(&context_, &request_, this);
  StartRead(&event_);
  StartCall();
}

void LoadRequest::OnReadDone(bool ok) {
  if (!ok) return;
  const absl::Duration now = SteadyClock().Now() - origin_;
  if (event_.has_delta() && event_.delta().token_ids_size() > 0) {
    if (record_.last_token.has_value()) {
      record_.itl.push_back(now - *record_.last_token);
    } else {
      record_.first_token = now;
    }
    record_.last_token = now;
  } else if (event_.has_done()) {
    record_.done = std::move(*event_.mutable_done());
  }
  StartRead(&event_);
}

void LoadRequest::OnDone(const grpc::Status& status) {
  record_.end = SteadyClock().Now() - origin_;
  record_.status = connection_.Result(status, 0);
  if (record_.status.ok() && record_.done.choices_size() == 0) {
    record_.status = absl::InternalError("the router ended the stream without its Done event");
  }
  std::function<void()> done = std::move(done_);  // it may delete this
  done();
}

}  // namespace sluice
