#include "client/line_reader.h"

#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

namespace sluice {

LineReader::Result LineReader::Read(std::string* line) {
  while (true) {
    if (size_t end = buffer_.find('\n'); end != std::string::npos) {
      *line = buffer_.substr(0, end);
      buffer_.erase(0, end + 1);
      return kLine;
    }
    if (ended_) {
      if (buffer_.empty()) return kEnd;
      *line = std::move(buffer_);
      buffer_.clear();
      return kLine;
    }
    pollfd fds[] = {{fd_, POLLIN, 0}, {interrupts_->fd(), POLLIN, 0}};
    if (poll(fds, 2, -1) < 0) continue;  // EINTR
    if (fds[1].revents != 0 && (signal_ = interrupts_->Take()) != 0) {
      buffer_.clear();
      return kInterrupted;
    }
    if (fds[0].revents == 0) continue;
    char bytes[4096];
    ssize_t count = read(fd_, bytes, sizeof(bytes));
    if (count > 0) {
      buffer_.append(bytes, count);
    } else if (count == 0 || (errno != EINTR && errno != EAGAIN)) {
      ended_ = true;
    }
  }
}

}  // namespace sluice
