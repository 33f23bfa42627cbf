#include "common/base/thread.h"

#include <pthread.h>

#include <utility>

namespace sluice {

NamedThread::NamedThread(const std::string& name, std::function<void()> body)
    : thread_([short_name = name.substr(0, 15), body = std::move(body)] {
        pthread_setname_np(pthread_self(), short_name.c_str());
        body();
      }) {}

NamedThread::~NamedThread() { Join(); }

NamedThread& NamedThread::operator=(NamedThread&& other) {
  Join();
  thread_ = std::move(other.thread_);
  return *this;
}

void NamedThread::Join() {
  if (thread_.joinable()) thread_.join();
}

}  // namespace sluice
