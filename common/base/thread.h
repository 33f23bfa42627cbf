// Role: a named thread that is joined when its owner goes. Names show in top, gdb and TSan reports.
#pragma once

#include <functional>
#include <string>
#include <thread>

namespace sluice {

class NamedThread {
 public:
  NamedThread() = default;
  // name: at most 15 characters reach the kernel.
  NamedThread(const std::string& name, std::function<void()> body);
  ~NamedThread();
  NamedThread(NamedThread&&) = default;
  NamedThread& operator=(NamedThread&& other);
  void Join();

 private:
  std::thread thread_;
};

}  // namespace sluice
