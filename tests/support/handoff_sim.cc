#include "tests/support/handoff_sim.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <random>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/transport/transports.h"

namespace sluice {
namespace {

Buffer HostBuffer(size_t bytes) { return Buffer(std::malloc(std::max<size_t>(bytes, 1)), bytes, std::free); }

Compatibility SimCompatibility(const KvShape& shape) {
  return {"w", "t", "r", "bf16", 64, shape.n_layers, shape.n_kv_heads, shape.head_dim};
}

}  // namespace

std::vector<KeptLayer> MakeKeptLayers(const KvShape& shape, int n_prompt, const std::vector<int>& ceiling,
                                      uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<KeptLayer> layers;
  for (int l = 0; l < shape.n_layers; ++l) {
    KeptLayer layer;
    std::vector<int32_t> positions;
    for (int h = 0; h < shape.n_kv_heads; ++h) {
      int rows = static_cast<int>(random() % (ceiling[l * shape.n_kv_heads + h] + 1));
      std::vector<int32_t> all(n_prompt);
      for (int i = 0; i < n_prompt; ++i) all[i] = i;
      std::shuffle(all.begin(), all.end(), random);
      std::sort(all.begin(), all.begin() + rows);
      positions.insert(positions.end(), all.begin(), all.begin() + rows);
      layer.kept.push_back(rows);
    }
    size_t bytes = positions.size() * shape.row_bytes();
    layer.k = HostBuffer(bytes);
    layer.v = HostBuffer(bytes);
    for (size_t i = 0; i < bytes; ++i) static_cast<char*>(layer.k.data())[i] = static_cast<char>(random());
    for (size_t i = 0; i < bytes; ++i) static_cast<char*>(layer.v.data())[i] = static_cast<char>(random());
    layer.positions = HostBuffer(positions.size() * sizeof(int32_t));
    if (!positions.empty())
      std::memcpy(layer.positions.data(), positions.data(), positions.size() * sizeof(int32_t));
    layers.push_back(std::move(layer));
  }
  return layers;
}

absl::StatusOr<uint64_t> SimPrefill::FillSlab(const HandoffKey&, const KeptLayer& source,
                                              const SlabHeader& header, char* slot) {
  return work->Fill(source, header, slot);
}

void SimPrefill::OnResult(const HandoffKey& key, const HandoffResult& result) {
  SLUICE_CHECK(started.contains(key));
  SLUICE_CHECK(results.emplace(key, result).second);  // exactly one result
}

absl::Status SimDecode::Reserve(const Offer& offer) {
  ++reserves;
  SLUICE_CHECK(!reserved.contains(offer.ids.key) && !ready.contains(offer.ids.key));
  SLUICE_RETURN_IF_ERROR(reserve_status);
  reserved[offer.ids.key].resize(offer.ceiling.size());
  return absl::OkStatus();
}

absl::StatusOr<SlabFacts> SimDecode::Inspect(const SlabHeader& header, const char* slab) {
  return work->Inspect(header, slab);
}

absl::Status SimDecode::Scatter(const HandoffKey& key, const SlabHeader& header, const char* slab,
                                absl::Span<const int32_t> positions) {
  SLUICE_CHECK(reserved.contains(key));
  SLUICE_RETURN_IF_ERROR(scatter_status);
  ++scatters;
  for (const SlabRun& run : RunsOf(header, shape, slab, positions)) {
    Head& head = reserved[key][header.layer.value() * shape.n_kv_heads + run.kv_head];
    SLUICE_CHECK(run.row_begin == static_cast<int>(head.positions.size()));
    head.k.append(run.k, run.n_rows * shape.row_bytes());
    head.v.append(run.v, run.n_rows * shape.row_bytes());
    head.positions.insert(head.positions.end(), run.positions.begin(), run.positions.end());
  }
  return absl::OkStatus();
}

void SimDecode::Ready(const HandoffKey& key, const Seal& seal, const std::vector<int>& kept) {
  auto it = reserved.find(key);
  SLUICE_CHECK(it != reserved.end());
  for (size_t i = 0; i < kept.size(); ++i)
    SLUICE_CHECK(kept[i] == static_cast<int>(it->second[i].positions.size()));
  SLUICE_CHECK(ready.emplace(key, std::move(it->second)).second);
  reserved.erase(it);
  seals[key] = seal;
  on_ready(key);
}

void SimDecode::Released(const HandoffKey& key, HandoffReason reason, const std::string&) {
  SLUICE_CHECK(reserved.erase(key) == 1);
  released[key] = reason;
}

HandoffSim::HandoffSim(SimOptions options, int n_prefill, int n_decode) : options_(std::move(options)) {
  prefills_.resize(n_prefill);
  decodes_.resize(n_decode);
  for (int p = 0; p < n_prefill; ++p) MakePrefill(p);
  for (int d = 0; d < n_decode; ++d) MakeDecode(d);
}

HandoffSim::~HandoffSim() = default;

std::unique_ptr<FaultyTransport> HandoffSim::MakeSimTransport() {
  std::unique_ptr<KvTransport> inner = std::make_unique<LoopbackTransport>(fabric_);
  if (options_.transport == "paired") {
    inner = std::make_unique<PairedTransport>(paired_);
  } else if (!options_.transport.empty()) {
    auto made = MakeTransport(options_.transport, {});
    SLUICE_CHECK(made.ok());
    inner = *std::move(made);
  }
  return std::make_unique<FaultyTransport>(std::move(inner), &clock_);
}

void HandoffSim::MakePrefill(int p) {
  prefills_[p] = std::make_unique<SimPrefill>();
  SimPrefill& prefill = *prefills_[p];
  prefill.shape = options_.shape;
  prefill.work = std::make_unique<SlabWork>(backend_.get(), options_.shape);
  prefill.transport = MakeSimTransport();
  prefill.send = [this, p](PeerId peer, const HandoffMessage& message) {
    for (const auto& [ends, link] : links_)
      if (ends.first == p && link.prefill_peer == peer) return Enqueue(ends, true, message);
  };
  HandoffSenderOptions options = options_.sender;
  options.incarnation = absl::StrCat("prefill-", ++incarnations_);
  options.compatibility = SimCompatibility(options_.shape);
  options.shape = options_.shape;
  options.slot_bytes = options_.slot_bytes;
  options.ring_slots = options_.ring_slots;
  auto sender = HandoffSender::Create(options, prefill.transport.get(), &prefill);
  SLUICE_CHECK(sender.ok());
  prefill.sender = *std::move(sender);
}

void HandoffSim::MakeDecode(int d) {
  decodes_[d] = std::make_unique<SimDecode>();
  SimDecode& decode = *decodes_[d];
  decode.shape = options_.shape;
  decode.work = std::make_unique<SlabWork>(backend_.get(), options_.shape);
  decode.on_ready = [](const HandoffKey&) {};
  decode.transport = MakeSimTransport();
  decode.send = [this, d](PeerId peer, const HandoffMessage& message) {
    for (const auto& [ends, link] : links_)
      if (ends.second == d && link.decode_peer == peer) return Enqueue(ends, false, message);
  };
  HandoffReceiverOptions options = options_.receiver;
  options.incarnation = absl::StrCat("decode-", ++incarnations_);
  options.compatibility = SimCompatibility(options_.shape);
  options.shape = options_.shape;
  options.slot_bytes = options_.slot_bytes;
  options.ring_slots = options_.ring_slots;
  decode.receiver = std::make_unique<HandoffReceiver>(options, decode.transport.get(), &decode);
}

PeerId HandoffSim::Connect(int p, int d) {
  Link& link = links_[{p, d}];
  link.prefill_peer = ++next_peer_;
  link.decode_peer = ++next_peer_;
  prefill(p).sender->OnConnected(link.prefill_peer, now());
  return link.prefill_peer;
}

void HandoffSim::ConnectReady(int p, int d) {
  PeerId peer = Connect(p, d);
  SLUICE_CHECK(RunUntil([&] { return prefill(p).sender->peer_ready(peer); }, absl::Seconds(10)));
}

void HandoffSim::Disconnect(int p, int d) {
  auto it = links_.find({p, d});
  if (it == links_.end()) return;
  Link link = std::move(it->second);
  links_.erase(it);
  if (prefills_[p] != nullptr) prefill(p).sender->OnPeerLost(link.prefill_peer, now());
  if (decodes_[d] != nullptr) decode(d).receiver->OnPeerLost(link.decode_peer, now());
}

void HandoffSim::KillPrefill(int p) {
  prefills_[p].reset();
  for (int d = 0; d < n_decode(); ++d) Disconnect(p, d);
}

void HandoffSim::KillDecode(int d) {
  decodes_[d].reset();
  for (int p = 0; p < n_prefill(); ++p) Disconnect(p, d);
}

void HandoffSim::RestartPrefill(int p) {
  KillPrefill(p);
  MakePrefill(p);
}

void HandoffSim::RestartDecode(int d) {
  KillDecode(d);
  MakeDecode(d);
}

void HandoffSim::Enqueue(std::pair<int, int> ends, bool toward_decode, HandoffMessage message) {
  if (partitioned.contains(ends)) return;
  Fate what = fate ? fate(message, toward_decode) : Fate();
  Link& link = links_.at(ends);
  std::deque<Queued>& queue = toward_decode ? link.to_decode : link.to_prefill;
  absl::Time at = now() + what.delay;
  if (!queue.empty()) at = std::max(at, queue.back().at);  // a stream keeps its order
  for (int i = 0; i < what.copies; ++i) queue.push_back({at, message});
}

void HandoffSim::Deliver() {
  for (bool moved = true; moved;) {
    moved = false;
    std::vector<std::pair<int, int>> ends;
    for (const auto& [end, link] : links_) ends.push_back(end);
    for (const auto& end : ends) {
      for (bool toward_decode : {true, false}) {
        auto it = links_.find(end);
        if (it == links_.end()) continue;
        std::deque<Queued>& queue = toward_decode ? it->second.to_decode : it->second.to_prefill;
        bool hung = toward_decode ? decode(end.second).hung : prefill(end.first).hung;
        if (hung || queue.empty() || queue.front().at > now()) continue;
        HandoffMessage message = std::move(queue.front().message);
        queue.pop_front();
        moved = true;
        ++delivered_[message.index()];
        if (toward_decode)
          decode(end.second).receiver->OnMessage(it->second.decode_peer, message, now());
        else
          prefill(end.first).sender->OnMessage(it->second.prefill_peer, message, now());
      }
    }
  }
}

int64_t HandoffSim::delivered(size_t variant_index) const {
  auto it = delivered_.find(variant_index);
  return it == delivered_.end() ? 0 : it->second;
}

void HandoffSim::AddSource(const std::string& id, int n_prompt, int ceiling, uint64_t seed) {
  std::vector<int> ceilings(options_.shape.n_layers * options_.shape.n_kv_heads, std::min(ceiling, n_prompt));
  sources_[id] = {n_prompt, ceilings, MakeKeptLayers(options_.shape, n_prompt, ceilings, seed)};
}

absl::Status HandoffSim::Start(int p, int d, const HandoffKey& key, absl::Duration deadline) {
  const Source& source = sources_.at(key.id);
  OfferSpec spec;
  spec.key = key;
  spec.peer = peer(p, d);
  spec.n_prompt = source.n_prompt;
  spec.ceiling = source.ceiling;
  spec.gates = "gates";
  spec.deadline = now() + deadline;
  bool fresh = prefill(p).started.insert(key).second;
  absl::Status status = prefill(p).sender->Start(std::move(spec), now());
  if (!status.ok() && fresh) prefill(p).started.erase(key);
  return status;
}

void HandoffSim::AddLayers(int p, const HandoffKey& key, int begin, int end) {
  for (int l = begin; l < end; ++l) {
    absl::Status added = prefill(p).sender->AddLayer(key, LayerId(l), &sources_.at(key.id).layers[l]);
    SLUICE_CHECK(added.ok());
  }
}

void HandoffSim::Finish(int p, const HandoffKey& key) {
  absl::Status finished =
      prefill(p).sender->Finish(key, {LogicalLen(sources_.at(key.id).n_prompt), 42, {1, 2, 3}});
  SLUICE_CHECK(finished.ok());
}

void HandoffSim::RunAll(int p, const HandoffKey& key) {
  AddLayers(p, key, 0, options_.shape.n_layers);
  Finish(p, key);
}

void HandoffSim::Step(absl::Duration by) {
  Deliver();
  for (auto& prefill : prefills_)
    if (prefill != nullptr && !prefill->hung) prefill->sender->Tick(now());
  for (auto& decode : decodes_)
    if (decode != nullptr && !decode->hung) decode->receiver->Tick(now());
  clock_.Advance(by);
}

bool HandoffSim::RunUntil(const std::function<bool()>& done, absl::Duration limit, absl::Duration by) {
  for (absl::Time end = now() + limit; now() < end;) {
    if (done()) return true;
    Step(by);
  }
  return done();
}

void HandoffSim::RunFor(absl::Duration time, absl::Duration by) {
  RunUntil([] { return false; }, time, by);
}

std::string HandoffSim::Compare(int d, const HandoffKey& key) {
  auto it = decode(d).ready.find(key);
  if (it == decode(d).ready.end()) return absl::StrCat(key.id, " is not ready");
  const KvShape& shape = options_.shape;
  for (int l = 0; l < shape.n_layers; ++l) {
    const KeptLayer& layer = sources_.at(key.id).layers[l];
    size_t row = 0;
    for (int h = 0; h < shape.n_kv_heads; ++h) {
      const SimDecode::Head& head = it->second[l * shape.n_kv_heads + h];
      size_t rows = layer.kept[h], bytes = rows * shape.row_bytes(), begin = row * shape.row_bytes();
      const auto* positions = static_cast<const int32_t*>(layer.positions.data()) + row;
      if (head.positions != std::vector<int32_t>(positions, positions + rows) ||
          head.k != std::string(static_cast<const char*>(layer.k.data()) + begin, bytes) ||
          head.v != std::string(static_cast<const char*>(layer.v.data()) + begin, bytes))
        return absl::StrCat(key.id, ": layer ", l, ", head ", h, " differs");
      row += rows;
    }
  }
  return "";
}

std::string HandoffSim::Leaks() {
  std::string leaks;
  auto expect = [&](const std::string& what, int got, int want) {
    if (got != want) absl::StrAppend(&leaks, what, " ", got, " instead of ", want, "; ");
  };
  for (int p = 0; p < n_prefill(); ++p) {
    if (prefills_[p] == nullptr) continue;
    std::string who = absl::StrCat("prefill ", p, ": ");
    expect(who + "live", prefill(p).sender->live(), 0);
    expect(who + "in flight", prefill(p).sender->in_flight(), 0);
    expect(who + "free send slots", prefill(p).sender->send_slots(now()).free, options_.ring_slots);
    expect(who + "busy peer slots", prefill(p).sender->peer_slots(now()).busy, 0);
    expect(who + "quarantined peer slots", prefill(p).sender->peer_slots(now()).quarantined, 0);
    expect(who + "rings", prefill(p).transport->rings(), 1);
    expect(who + "attempts without result", prefill(p).started.size(), prefill(p).results.size());
  }
  for (int d = 0; d < n_decode(); ++d) {
    if (decodes_[d] == nullptr) continue;
    std::string who = absl::StrCat("decode ", d, ": ");
    int links = 0;
    for (const auto& [ends, link] : links_) links += ends.second == d;
    expect(who + "live", decode(d).receiver->live(), 0);
    expect(who + "draining", decode(d).receiver->draining(), 0);
    expect(who + "reserved", decode(d).reserved.size(), 0);
    expect(who + "free ring slots", decode(d).receiver->slots(now()).free, links * options_.ring_slots);
    expect(who + "busy or quarantined ring slots",
           decode(d).receiver->slots(now()).busy + decode(d).receiver->slots(now()).quarantined, 0);
    expect(who + "rings", decode(d).transport->rings(), links);
  }
  return leaks;
}

}  // namespace sluice
