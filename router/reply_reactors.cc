#include "router/reply_reactors.h"

#include <utility>
#include <vector>

#include "common/rpc/status_codec.h"

namespace sluice {
namespace {

// choice: a ChatResponse or an OtherChoice.
template <class Choice>
void Append(const v1::Delta& delta, Choice* choice) {
  choice->mutable_text()->append(delta.text());
  choice->mutable_token_ids()->MergeFrom(delta.token_ids());
  choice->mutable_logprobs()->MergeFrom(delta.logprobs());
}

}  // namespace

grpc::ByteBuffer ToBuffer(const google::protobuf::Message& message) {
  grpc::Slice slice(message.SerializeAsString());
  return grpc::ByteBuffer(&slice, 1);
}

std::string BytesOf(const grpc::ByteBuffer& buffer) {
  std::vector<grpc::Slice> slices;
  std::string bytes;
  if (!buffer.Valid() || !buffer.Dump(&slices).ok()) return bytes;
  bytes.reserve(buffer.Length());
  for (const grpc::Slice& slice : slices)
    bytes.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
  return bytes;
}

void StreamReply::Attach(std::shared_ptr<RequestRun> run) {
  bool gone;
  {
    MutexLock lock(&mu_);
    gone = broken_;
    run_ = run;
  }
  if (gone) run->ClientGone();
}

void StreamReply::Send(const v1::ChatEvent& event) {
  MutexLock lock(&mu_);
  if (broken_ || finished_) return;
  queue_.push_back(ToBuffer(event));
  backlog_ += queue_.back().Length();
  if (queue_.size() == 1) WriteNext();
}

void StreamReply::WriteNext() { StartWrite(&queue_.front()); }

size_t StreamReply::backlog_bytes() const {
  MutexLock lock(&mu_);
  return backlog_;
}

void StreamReply::Finish(const absl::Status& status) {
  std::shared_ptr<RequestRun> run;  // let go outside of the lock
  {
    MutexLock lock(&mu_);
    run = std::move(run_);
    finished_ = true;
  }
  grpc::ServerWriteReactor<grpc::ByteBuffer>::Finish(ToGrpcStatus(status));
}

void StreamReply::OnWriteDone(bool ok) {
  std::shared_ptr<RequestRun> run;
  {
    MutexLock lock(&mu_);
    backlog_ -= queue_.front().Length();
    queue_.pop_front();
    if (!ok) {
      broken_ = true;
      queue_.clear();
      backlog_ = 0;
    }
    if (!queue_.empty() && !finished_) WriteNext();
    run = run_;
  }
  if (run != nullptr) ok ? run->Drained() : run->ClientGone();
}

void StreamReply::OnCancel() {
  std::shared_ptr<RequestRun> run;
  {
    MutexLock lock(&mu_);
    broken_ = true;
    run = run_;
  }
  if (run != nullptr) run->ClientGone();
}

void UnaryReply::Attach(std::shared_ptr<RequestRun> run) {
  MutexLock lock(&mu_);
  run_ = std::move(run);
}

void UnaryReply::Send(const v1::ChatEvent& event) {
  switch (event.event_case()) {
    case v1::ChatEvent::kStarted:
      *sum_.mutable_started() = event.started();
      break;
    case v1::ChatEvent::kDelta:
      if (event.delta().index() == 0) {
        Append(event.delta(), &sum_);
      } else {
        while (sum_.others_size() < event.delta().index()) {
          const int index = sum_.others_size() + 1;
          sum_.add_others()->set_index(index);
        }
        Append(event.delta(), sum_.mutable_others(event.delta().index() - 1));
      }
      break;
    case v1::ChatEvent::kDone:
      *sum_.mutable_done() = event.done();
      break;
    default:
      break;
  }
}

void UnaryReply::Finish(const absl::Status& status) {
  std::shared_ptr<RequestRun> run;
  {
    MutexLock lock(&mu_);
    run = std::move(run_);
  }
  if (status.ok()) *response_ = ToBuffer(sum_);
  grpc::ServerUnaryReactor::Finish(ToGrpcStatus(status));
}

void UnaryReply::OnCancel() {
  std::shared_ptr<RequestRun> run;
  {
    MutexLock lock(&mu_);
    run = run_;
  }
  if (run != nullptr) run->ClientGone();
}

}  // namespace sluice
