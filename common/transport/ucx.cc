#include "common/transport/ucx.h"

#include <ucp/api/ucp.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/base/status.h"
#include "common/transport/process_mark.h"
#include "common/transport/ranges.h"
#include "common/transport/ucx_calls.h"

namespace sluice {
namespace {

constexpr absl::string_view kAddressMark = "ucx-address:";
constexpr absl::string_view kDeviceMark = "gpu ", kHostMark = "host ";  // where the sender's rings lie
constexpr absl::string_view kKeyMark = "ucx-ring:";
constexpr int kProgressRounds = 64;  // per connection and call: enough for a burst, short enough for a loop

}  // namespace

struct UcxTransport::Impl {
  struct LocalRing {
    ucp_mem_h memory = nullptr;
    char* data = nullptr;
    size_t bytes = 0;
    bool on_device = false;
    Buffer backing = {};  // device memory, or the device's view of memory that UCX allocated
    RegionId staging{0};  // of one on the device: its copy in host memory, for peers that GPUs do not reach
  };
  struct RemoteRing {
    PeerId peer;
    ucp_rkey_h key = nullptr;
    uint64_t address = 0;
    size_t bytes = 0;
  };
  struct Connection {
    ucp_worker_h worker = nullptr;
    ucp_ep_h endpoint = nullptr;
    bool failed = false;  // set by UCX's error callback
    bool closing = false;
    bool cut = false;  // closed with pushes under way
    UcxRequest close;
    std::string process;  // the peer's ProcessMark
    // GPUs move what goes between its rings and ours. What they do not, UCX would put with messages that the
    // receiver answers, and it ends the receiver's process when the sender is gone by then.
    bool by_gpus = false;
    bool exposed = false;  // it may map a ring of ours that is a GPU's memory
  };
  struct Transfer {
    PeerId peer;
    UcxRequest put, flush;
  };

  UcxOptions options;
  bool device_rings = false;
  ucp_context_h context = nullptr;
  std::map<RegionId, LocalRing> rings;
  std::map<RemoteRegionId, RemoteRing> remotes;
  std::map<PeerId, Connection> connections;  // nodes are stable: UCX holds pointers to them
  std::map<TransferId, Transfer> transfers;
  std::unique_ptr<Ops> ops;  // of Stage
  RegionId next_region{0};
  RemoteRegionId next_remote{0};
  TransferId next_transfer{0};

  absl::StatusOr<Connection*> Open(PeerId peer) {
    if (auto it = connections.find(peer); it != connections.end()) {
      if (it->second.worker == nullptr)
        return absl::UnavailableError(absl::StrCat("ucx: peer ", peer.value(), " is closing"));
      return &it->second;
    }
    ucp_worker_params_t params = {};
    params.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
    params.thread_mode = UCS_THREAD_MODE_SINGLE;
    ucp_worker_h worker = nullptr;
    SLUICE_RETURN_IF_ERROR(UcxStatus("ucp_worker_create", ucp_worker_create(context, &params, &worker)));
    Connection& connection = connections[peer];
    connection.worker = worker;
    return &connection;
  }

  // UCX asks the calling thread which GPU it means.
  void Enter() const {
    if (device_rings) options.backend->Enter();
  }
  static ucs_memory_type_t TypeOf(const LocalRing& ring) {
    return ring.on_device ? UCS_MEMORY_TYPE_CUDA : UCS_MEMORY_TYPE_HOST;
  }

  // `ring` says how long it is and where.
  absl::StatusOr<Ring> Allocate(LocalRing ring) {
    ucp_mem_map_params_t params = {};
    params.field_mask = UCP_MEM_MAP_PARAM_FIELD_LENGTH | UCP_MEM_MAP_PARAM_FIELD_MEMORY_TYPE;
    params.length = ring.bytes;
    params.memory_type = TypeOf(ring);
    if (ring.on_device) {
      SLUICE_ASSIGN_OR_RETURN(ring.backing, options.backend->AllocateExposed(ring.bytes));
      params.field_mask |= UCP_MEM_MAP_PARAM_FIELD_ADDRESS;
      params.address = ring.backing.data();
    } else {
      params.field_mask |= UCP_MEM_MAP_PARAM_FIELD_FLAGS;
      params.flags = UCP_MEM_MAP_ALLOCATE;  // shared memory reaches only what UCX itself allocated
    }
    SLUICE_RETURN_IF_ERROR(UcxStatus(absl::StrCat("ucp_mem_map of ", ring.bytes, " bytes"),
                                     ucp_mem_map(context, &params, &ring.memory)));
    ucp_mem_attr_t attributes = {};
    attributes.field_mask = UCP_MEM_ATTR_FIELD_ADDRESS;
    if (ucs_status_t status = ucp_mem_query(ring.memory, &attributes); status != UCS_OK) {
      ucp_mem_unmap(context, ring.memory);
      return UcxStatus("ucp_mem_query", status);
    }
    ring.data = static_cast<char*>(attributes.address);
    if (!ring.on_device && options.backend != nullptr) {
      absl::StatusOr<Buffer> mapping = options.backend->MapHost(ring.data, ring.bytes);
      if (!mapping.ok()) {
        ucp_mem_unmap(context, ring.memory);
        return mapping.status();
      }
      ring.backing = *std::move(mapping);
    }
    const Ring made{++next_region, ring.data, ring.bytes};
    rings[made.region] = std::move(ring);
    return made;
  }

  // Copies `slice` of a ring on the device into its staging, and returns that.
  absl::StatusOr<const LocalRing*> Stage(LocalRing* ring, Slice slice) {
    if (ring->staging == RegionId{0}) {
      LocalRing staging;
      staging.bytes = ring->bytes;
      SLUICE_ASSIGN_OR_RETURN(const Ring made, Allocate(std::move(staging)));
      ring->staging = made.region;
    }
    if (ops == nullptr) ops = options.backend->NewOps();
    const LocalRing& staging = rings.at(ring->staging);
    // In words: both blocks are longer than what they hold.
    const int64_t begin = slice.offset / 4, end = (slice.offset + static_cast<int64_t>(slice.bytes) + 3) / 4;
    const auto words = [&](const Buffer& buffer) {
      return TensorView::Contiguous(static_cast<int32_t*>(buffer.data()) + begin, DType::kI32, {end - begin});
    };
    ops->Copy(words(ring->backing), words(staging.backing));
    SLUICE_RETURN_IF_ERROR(ops->Sync());
    return &staging;
  }

  static bool Drive(Connection* connection) {
    bool moved = false;
    for (int i = 0; i < kProgressRounds && ucp_worker_progress(connection->worker) != 0; ++i) moved = true;
    return moved;
  }
};

absl::StatusOr<std::unique_ptr<UcxTransport>> UcxTransport::Create(const UcxOptions& options) {
  auto impl = std::make_unique<Impl>();
  impl->options = options;
  const bool gpu = options.backend != nullptr && options.backend->is_gpu();
  if (gpu && options.tls.empty()) {
    impl->options.tls = kUcxDeviceTls;
    options.backend->Enter();
    SLUICE_ASSIGN_OR_RETURN(impl->context, OpenUcxContext(kUcxDeviceTls));
    impl->device_rings = ReachesDeviceMemory(impl->context);
    if (impl->device_rings) return std::unique_ptr<UcxTransport>(new UcxTransport(std::move(impl)));
    ucp_cleanup(impl->context);
  }
  if (options.tls.empty()) impl->options.tls = kUcxHostTls;
  SLUICE_RETURN_IF_ERROR(CheckUcxTls(impl->options.tls));
  if (gpu) options.backend->Enter();
  SLUICE_ASSIGN_OR_RETURN(impl->context, OpenUcxContext(impl->options.tls));
  impl->device_rings = gpu && ReachesDeviceMemory(impl->context);
  return std::unique_ptr<UcxTransport>(new UcxTransport(std::move(impl)));
}

UcxTransport::UcxTransport(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

UcxTransport::~UcxTransport() {
  std::vector<PeerId> peers;
  for (const auto& [peer, connection] : impl_->connections) peers.push_back(peer);
  // The process ends, or a test does: nobody waits for the peer's end.
  for (auto& [peer, connection] : impl_->connections) connection.exposed = false;
  for (PeerId peer : peers) {
    // A forced close needs a few rounds; destroying the worker afterwards ends what is left of it.
    for (int i = 0; i < 1000 && !Quiesce(peer).ok(); ++i) {
    }
    auto it = impl_->connections.find(peer);
    if (it != impl_->connections.end() && it->second.worker != nullptr) ucp_worker_destroy(it->second.worker);
  }
  impl_->connections.clear();
  impl_->transfers.clear();
  for (const auto& [id, remote] : impl_->remotes) ucp_rkey_destroy(remote.key);
  while (!impl_->rings.empty()) ReleaseRing(impl_->rings.begin()->first);
  ucp_cleanup(impl_->context);
}

absl::string_view UcxTransport::name() const { return impl_->options.name; }

std::string UcxTransport::description() const {
  const bool gpu = impl_->options.backend != nullptr && impl_->options.backend->is_gpu();
  return absl::StrCat(impl_->options.name, ": UCX ", ucp_get_version_string(), ", ", impl_->options.tls,
                      impl_->device_rings ? ", slots in GPU memory"
                      : gpu               ? ", slots in host memory: this UCX, or --ucx-tls, has no cuda_ipc"
                                          : "",
                      impl_->options.peer_error_handling ? ", dead peers detected" : "");
}

bool UcxTransport::device_rings() const { return impl_->device_rings; }

absl::StatusOr<Ring> UcxTransport::AllocateRing(size_t bytes, std::optional<PeerId> writer) {
  if (bytes == 0) return absl::InvalidArgumentError("ucx: a ring of 0 bytes");
  impl_->Enter();
  Impl::LocalRing ring;
  ring.bytes = bytes;
  ring.on_device = impl_->device_rings;
  if (writer && impl_->device_rings) {
    auto it = impl_->connections.find(*writer);
    if (it == impl_->connections.end() || it->second.endpoint == nullptr)
      return absl::FailedPreconditionError(absl::StrCat("ucx: peer ", writer->value(), " is not connected"));
    ring.on_device = it->second.by_gpus;
    it->second.exposed |= ring.on_device;
  }
  return impl_->Allocate(std::move(ring));
}

void UcxTransport::ReleaseRing(RegionId region) {
  auto it = impl_->rings.find(region);
  if (it == impl_->rings.end()) return;
  impl_->Enter();
  Impl::LocalRing ring = std::move(it->second);
  impl_->rings.erase(it);
  if (ring.staging != RegionId{0}) ReleaseRing(ring.staging);
  if (!ring.on_device) ring.backing = Buffer();  // a view ends before what it shows
  ucp_mem_unmap(impl_->context, ring.memory);
}

absl::StatusOr<std::string> UcxTransport::LocalAddress(PeerId peer) {
  impl_->Enter();
  SLUICE_ASSIGN_OR_RETURN(Impl::Connection * connection, impl_->Open(peer));
  ucp_address_t* address = nullptr;
  size_t bytes = 0;
  SLUICE_RETURN_IF_ERROR(
      UcxStatus("ucp_worker_get_address", ucp_worker_get_address(connection->worker, &address, &bytes)));
  std::string text =
      absl::StrCat(kAddressMark, impl_->device_rings ? kDeviceMark : kHostMark, ProcessMark(), "\n");
  text.append(reinterpret_cast<const char*>(address), bytes);
  ucp_worker_release_address(connection->worker, address);
  return text;
}

// The mark, the ring's address and length, then UCX's packed key.
std::string UcxTransport::ExportKey(RegionId region) const {
  auto it = impl_->rings.find(region);
  if (it == impl_->rings.end()) return "";
  impl_->Enter();
  void* key = nullptr;
  size_t bytes = 0;
  if (ucp_rkey_pack(impl_->context, it->second.memory, &key, &bytes) != UCS_OK) return "";
  const uint64_t where[2] = {reinterpret_cast<uint64_t>(it->second.data), it->second.bytes};
  std::string text(kKeyMark);
  text.append(reinterpret_cast<const char*>(where), sizeof(where));
  text.append(static_cast<const char*>(key), bytes);
  ucp_rkey_buffer_release(key);
  return text;
}

absl::Status UcxTransport::Connect(PeerId peer, absl::string_view address) {
  const size_t process_end = address.find('\n');
  if (!absl::ConsumePrefix(&address, kAddressMark) || process_end == absl::string_view::npos)
    return absl::InvalidArgumentError("ucx: not an address of this transport");
  absl::string_view process = address.substr(0, process_end - kAddressMark.size());
  address.remove_prefix(process.size() + 1);
  const bool device_peer = absl::ConsumePrefix(&process, kDeviceMark);
  if ((!device_peer && !absl::ConsumePrefix(&process, kHostMark)) || address.empty())
    return absl::InvalidArgumentError("ucx: an address without its parts");
  impl_->Enter();
  SLUICE_ASSIGN_OR_RETURN(Impl::Connection * connection, impl_->Open(peer));
  if (connection->endpoint != nullptr || connection->closing)
    return absl::AlreadyExistsError(absl::StrCat("ucx: peer ", peer.value(), " is connected"));
  connection->process = std::string(process);
  connection->by_gpus = impl_->device_rings && device_peer && OfThisHost(process) && process != ProcessMark();
  ucp_ep_params_t params = {};
  params.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE;
  params.address = reinterpret_cast<const ucp_address_t*>(address.data());
  params.err_mode = UCP_ERR_HANDLING_MODE_NONE;
  if (impl_->options.peer_error_handling) {
    params.field_mask |= UCP_EP_PARAM_FIELD_ERR_HANDLER;
    params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
    params.err_handler.cb = [](void* arg, ucp_ep_h, ucs_status_t) {
      static_cast<Impl::Connection*>(arg)->failed = true;
    };
    params.err_handler.arg = connection;
  }
  return UcxStatus("ucp_ep_create", ucp_ep_create(connection->worker, &params, &connection->endpoint));
}

absl::StatusOr<RemoteRegionId> UcxTransport::ImportKey(PeerId peer, absl::string_view key) {
  auto it = impl_->connections.find(peer);
  if (it == impl_->connections.end() || it->second.endpoint == nullptr)
    return absl::FailedPreconditionError(absl::StrCat("ucx: peer ", peer.value(), " is not connected"));
  uint64_t where[2];
  if (!absl::ConsumePrefix(&key, kKeyMark) || key.size() <= sizeof(where))
    return absl::InvalidArgumentError("ucx: not a ring of this transport");
  std::memcpy(where, key.data(), sizeof(where));
  key.remove_prefix(sizeof(where));
  impl_->Enter();
  ucp_rkey_h remote_key = nullptr;
  SLUICE_RETURN_IF_ERROR(
      UcxStatus("ucp_ep_rkey_unpack", ucp_ep_rkey_unpack(it->second.endpoint, key.data(), &remote_key)));
  RemoteRegionId remote = ++impl_->next_remote;
  impl_->remotes[remote] = {peer, remote_key, where[0], where[1]};
  return remote;
}

absl::StatusOr<TransferId> UcxTransport::Push(PeerId peer, RegionId local, Slice from, RemoteRegionId remote,
                                              int64_t remote_offset) {
  auto connection = impl_->connections.find(peer);
  auto ring = impl_->rings.find(local);
  auto target = impl_->remotes.find(remote);
  if (connection == impl_->connections.end() || ring == impl_->rings.end() ||
      target == impl_->remotes.end() || target->second.peer != peer)
    return absl::NotFoundError("ucx: push between unknown rings");
  impl_->Enter();
  // A send that failed tells the error callback at the next progress; until then UCX ends the process if it
  // is given another one.
  if (!connection->second.failed && connection->second.worker != nullptr) Impl::Drive(&connection->second);
  if (connection->second.failed || connection->second.closing)
    return absl::UnavailableError(absl::StrCat("ucx: the connection to peer ", peer.value(), " failed"));
  if (!InRange(from.offset, from.bytes, ring->second.bytes) ||
      !InRange(remote_offset, from.bytes, target->second.bytes))
    return absl::OutOfRangeError("ucx: push outside of a ring");
  const Impl::LocalRing* source = &ring->second;
  if (source->on_device && !connection->second.by_gpus) {
    SLUICE_ASSIGN_OR_RETURN(source, impl_->Stage(&ring->second, from));
  }
  ucp_request_param_t put = {};
  put.op_attr_mask = UCP_OP_ATTR_FIELD_MEMORY_TYPE | UCP_OP_ATTR_FIELD_MEMH;
  put.memory_type = Impl::TypeOf(*source);
  put.memh = source->memory;
  Impl::Transfer transfer;
  transfer.peer = peer;
  transfer.put = UcxRequest(ucp_put_nbx(connection->second.endpoint, source->data + from.offset, from.bytes,
                                        target->second.address + static_cast<uint64_t>(remote_offset),
                                        target->second.key, &put));
  // The put's own completion frees the source; only the flush says that the bytes are there.
  ucp_request_param_t flush = {};
  if (transfer.put.status() >= 0)
    transfer.flush = UcxRequest(ucp_ep_flush_nbx(connection->second.endpoint, &flush));
  TransferId id = ++impl_->next_transfer;
  impl_->transfers.emplace(id, std::move(transfer));
  return id;
}

bool UcxTransport::Progress() {
  impl_->Enter();
  bool moved = false;
  for (auto& [peer, connection] : impl_->connections)
    if (connection.worker != nullptr) moved |= Impl::Drive(&connection);
  return moved;
}

TransferState UcxTransport::Poll(TransferId transfer) {
  auto it = impl_->transfers.find(transfer);
  if (it == impl_->transfers.end()) return TransferState::kFailed;
  ucs_status_t put = it->second.put.status(), flush = it->second.flush.status();
  if (put == UCS_INPROGRESS || flush == UCS_INPROGRESS) return TransferState::kPending;
  impl_->transfers.erase(it);
  return put == UCS_OK && flush == UCS_OK ? TransferState::kDone : TransferState::kFailed;
}

absl::Status UcxTransport::Quiesce(PeerId peer) {
  auto it = impl_->connections.find(peer);
  if (it == impl_->connections.end()) return absl::OkStatus();
  impl_->Enter();
  Impl::Connection& connection = it->second;
  if (!connection.closing) {
    connection.closing = true;
    connection.cut = std::any_of(impl_->transfers.begin(), impl_->transfers.end(),
                                 [&](const auto& entry) { return entry.second.peer == peer; });
    // Copies that a GPU has begun end whatever becomes of the peer; then UCX can see that they have.
    if (connection.cut && impl_->device_rings && connection.worker != nullptr) {
      SLUICE_RETURN_IF_ERROR(impl_->options.backend->Drain());
      Impl::Drive(&connection);
    }
    // Without peer error handling UCX knows no forced close, and a flushing one waits for a peer that may be
    // dead; there the end of the worker is the close.
    if (connection.endpoint != nullptr && impl_->options.peer_error_handling) {
      ucp_request_param_t force = {};
      force.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
      force.flags = UCP_EP_CLOSE_FLAG_FORCE;
      connection.close = UcxRequest(ucp_ep_close_nbx(connection.endpoint, &force));
    }
  }
  if (connection.worker != nullptr) {
    Impl::Drive(&connection);
    if (connection.close.status() == UCS_INPROGRESS)
      return absl::UnavailableError(absl::StrCat("ucx: peer ", peer.value(), " is still closing"));
    std::erase_if(impl_->remotes, [&](const auto& entry) {
      if (entry.second.peer != peer) return false;
      ucp_rkey_destroy(entry.second.key);
      return true;
    });
    std::erase_if(impl_->transfers, [&](const auto& entry) { return entry.second.peer == peer; });
    connection.close = UcxRequest();
    ucp_worker_destroy(std::exchange(connection.worker, nullptr));
    // Of what was begun since.
    if (impl_->device_rings && connection.cut) SLUICE_RETURN_IF_ERROR(impl_->options.backend->Drain());
  }
  // A process on this host that has mapped a ring of GPU memory writes it without asking anybody.
  if (connection.exposed && !ProcessIsGone(connection.process))
    return absl::UnavailableError(absl::StrCat("ucx: the process of peer ", peer.value(), " is alive"));
  impl_->connections.erase(it);
  return absl::OkStatus();
}

void UcxTransport::PeerIsIdle(PeerId peer) {
  if (auto it = impl_->connections.find(peer); it != impl_->connections.end()) it->second.exposed = false;
}

}  // namespace sluice
