// What a transport takes between two processes, by message size: one push and its end, and eight under way.
//   transport_bench TRANSPORT DEVICE PEER_DEVICE
#include <cstdio>
#include <deque>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "common/transport/transports.h"
#include "kernels/make_backend.h"
#include "tests/common/transport/peer_process.h"
#include "tests/common/transport/ring_bytes.h"

namespace sluice {
namespace {

constexpr size_t kRing = size_t{64} << 20;

template <class T>
T Must(absl::StatusOr<T> value) {
  if (!value.ok()) {
    std::fprintf(stderr, "%s\n", value.status().ToString().c_str());
    std::exit(1);
  }
  return *std::move(value);
}

class Bench {
 public:
  Bench(const std::string& name, const std::string& device, const std::string& peer_device)
      : backend_(Must(MakeBackend(device, {.threads = 1}))),
        transport_(Must(MakeTransport(name, {.backend = backend_.get()}))),
        process_(name, peer_device),
        bytes_(backend_.get()) {
    std::printf("%s: %s to %s\n", transport_->description().c_str(), device.c_str(), peer_device.c_str());
    ring_ = Must(transport_->AllocateRing(kRing));
    bytes_.Fill(ring_, 5);
    process_.Say(absl::StrCat("open ", ToHex(Must(transport_->LocalAddress(kPeer))), " ", kRing));
    std::istringstream answer(process_.Hear(transport_.get()));
    std::string address, key;
    answer >> address >> key;
    SLUICE_CHECK(transport_->Connect(kPeer, FromHex(address)).ok());
    remote_ = Must(transport_->ImportKey(kPeer, FromHex(key)));
  }

  void Run(size_t bytes) {
    const int times = static_cast<int>(std::clamp<size_t>((size_t{1} << 30) / bytes, 20, 2000));
    Pushes(bytes, 5, 1);
    const double one = Pushes(bytes, times, 1), many = Pushes(bytes, times, 8);
    process_.Say(absl::StrCat("sum 0 ", bytes));
    const bool same = process_.Hear(transport_.get()) == std::to_string(bytes_.Sum(ring_, 0, bytes));
    std::printf("%10zu bytes: one push %8.1f us, %7.2f GB/s with eight under way, bytes %s\n", bytes,
                one * 1e6, static_cast<double>(bytes) / many / 1e9, same ? "agree" : "DIFFER");
  }

 private:
  static constexpr PeerId kPeer{1};
  // Seconds for each of `times` pushes, `depth` of them under way.
  double Pushes(size_t bytes, int times, int depth) {
    if (transport_->two_sided()) {
      process_.Say(absl::StrCat("expect 0 ", bytes, " ", times));
      SLUICE_CHECK(process_.Hear(transport_.get()) == "ok");
    }
    const absl::Time begin = SteadyClock().Now();
    std::deque<TransferId> under_way;
    for (int begun = 0; begun < times || !under_way.empty();) {
      while (begun < times && static_cast<int>(under_way.size()) < depth) {
        under_way.push_back(Must(transport_->Push(kPeer, ring_.region, {0, bytes}, remote_, 0)));
        ++begun;
      }
      transport_->Progress();
      const TransferState state = transport_->Poll(under_way.front());
      SLUICE_CHECK(state != TransferState::kFailed);
      if (state == TransferState::kDone) under_way.pop_front();
    }
    return absl::ToDoubleSeconds(SteadyClock().Now() - begin) / times;
  }

  std::unique_ptr<Backend> backend_;
  std::unique_ptr<KvTransport> transport_;
  PeerProcess process_;
  RingBytes bytes_;
  Ring ring_;
  RemoteRegionId remote_;
};

}  // namespace
}  // namespace sluice

int main(int argc, char** argv) {
  if (argc != 4) return 2;
  sluice::Bench bench(argv[1], argv[2], argv[3]);
  for (size_t bytes : {size_t{4} << 10, size_t{64} << 10, size_t{1} << 20, size_t{4} << 20, size_t{13} << 20,
                       size_t{16} << 20, size_t{64} << 20})
    bench.Run(bytes);
  return 0;
}
