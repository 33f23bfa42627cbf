// The other end of a connection, driven by lines on stdin: one command, one line of answer. Bytes are hex.
//   open ADDRESS RING_BYTES  -> our address and the key of our ring
//   fill SEED                fills the ring            -> ok
//   sum OFFSET BYTES         order-sensitive checksum  -> the sum
//   expect OFFSET BYTES TIMES   two-sided: posts receives -> ok
//   push KEY BYTES TIMES     into the caller's ring, TIMES times without waiting -> ok when all are done
//   rate KEY BYTES           probes the way back       -> bytes per second
// Ends with stdin.
#include <poll.h>
#include <unistd.h>

#include <cstdio>
#include <iostream>
#include <map>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "common/base/clock.h"
#include "common/transport/probe.h"
#include "common/transport/transports.h"
#include "kernels/make_backend.h"
#include "tests/common/transport/ring_bytes.h"

namespace sluice {
namespace {

class Peer {
 public:
  Peer(const std::string& transport, const std::string& device)
      : backend_(Must(MakeBackend(device, {.threads = 1}))), bytes_(backend_.get()) {
    auto made = MakeTransport(transport, {.backend = backend_.get()});
    if (!made.ok()) Die(made.status());
    transport_ = *std::move(made);
  }

  std::string Answer(const std::string& line) {
    std::istringstream words(line);
    std::string command, hex;
    words >> command >> hex;
    if (command == "open") {
      size_t bytes = 0;
      words >> bytes;
      if (absl::Status s = transport_->Connect(PeerId(1), FromHex(hex)); !s.ok()) Die(s);
      ring_ = Must(transport_->AllocateRing(bytes, PeerId(1)));
      std::string address = Must(transport_->LocalAddress(PeerId(1)));
      return ToHex(address) + " " + ToHex(transport_->ExportKey(ring_.region));
    }
    if (command == "fill") {
      bytes_.Fill(ring_, std::stoull(hex));
      return "ok";
    }
    if (command == "sum") {
      size_t bytes = 0;
      words >> bytes;
      // A push that has ended there may still be landing here.
      for (TransferId receive : std::exchange(expected_, {}))
        while (transport_->Poll(receive) == TransferState::kPending) transport_->Progress();
      return std::to_string(bytes_.Sum(ring_, std::stoull(hex), bytes));
    }
    size_t bytes = 0;
    int times = 0;
    words >> bytes >> times;
    if (command == "expect") {
      for (int i = 0; i < times; ++i)
        expected_.push_back(Must(transport_->Expect(PeerId(1), ring_.region, {std::stoll(hex), bytes})));
      return "ok";
    }
    RemoteRegionId remote = Must(transport_->ImportKey(PeerId(1), FromHex(hex)));
    if (command == "rate") {
      RingProbe probe(transport_.get(), PeerId(1), ring_.region, remote, bytes, 8);
      for (;;) {
        transport_->Progress();
        if (auto rate = Must(probe.Step(SteadyClock().Now()))) return std::to_string(*rate);
      }
    }
    std::vector<TransferId> pushes;
    for (int i = 0; i < times; ++i)
      pushes.push_back(Must(transport_->Push(PeerId(1), ring_.region, {0, bytes}, remote, 0)));
    for (TransferId push : pushes) {
      TransferState state;
      while ((state = transport_->Poll(push)) == TransferState::kPending) transport_->Progress();
      if (state == TransferState::kFailed) return "failed";
    }
    return "ok";
  }

  void Progress() { transport_->Progress(); }

 private:
  [[noreturn]] static void Die(const absl::Status& status) {
    std::cerr << status << "\n";
    _exit(1);
  }
  template <class T>
  static T Must(absl::StatusOr<T> value) {
    if (!value.ok()) Die(value.status());
    return *std::move(value);
  }
  std::unique_ptr<Backend> backend_;
  RingBytes bytes_;
  std::vector<TransferId> expected_;
  std::unique_ptr<KvTransport> transport_;
  Ring ring_;
};

void Loop(Peer& peer) {
  std::string pending;
  for (;;) {
    peer.Progress();
    pollfd in = {STDIN_FILENO, POLLIN, 0};
    if (poll(&in, 1, 0) == 0) continue;
    char buffer[4096];
    ssize_t n = read(STDIN_FILENO, buffer, sizeof(buffer));
    if (n <= 0) return;
    pending.append(buffer, static_cast<size_t>(n));
    for (size_t end; (end = pending.find('\n')) != std::string::npos; pending.erase(0, end + 1)) {
      std::string answer = peer.Answer(pending.substr(0, end)) + "\n";
      if (write(STDOUT_FILENO, answer.data(), answer.size()) < 0) return;
    }
  }
}

}  // namespace
}  // namespace sluice

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  sluice::Peer peer(argv[1], argv[2]);
  sluice::Loop(peer);
  return 0;
}
