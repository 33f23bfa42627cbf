#include "common/engine/prefill_pass.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/status.h"
#include "common/compression/propagation/propagation_policy.h"
#include "common/compression/retention/retention_policy.h"
#include "common/engine/prefill_rows.h"

namespace sluice {
namespace {

// Rows without gaps as values of four bytes.
TensorView Words(const TensorView& rows) {
  return TensorView::Contiguous(
      rows.data, DType::kI32,
      {rows.shape[0], rows.shape[1] * static_cast<int64_t>(DTypeSize(rows.dtype)) / 4});
}

// Whether the sequence's layers, up to the propagation layer, only serve to choose what it begins anew with.
bool Restarts(const PrefillSequence& sequence) {
  const PropagationGate& gate = sequence.gates.propagation;
  const PropagationPolicy* policy = PropagationPolicyOf(gate.kind);
  return policy != nullptr && policy->restarts() && static_cast<int64_t>(sequence.ids.size()) > gate.rows;
}

}  // namespace

// The tokens of all sequences lie one sequence after another in hidden and positions.
struct PrefillPass::Impl {
  // The last layer whose chosen rows the layers after it may keep as well.
  struct Leader {
    int n_tokens = 0;
    Buffer memory;  // of plan.rows
    LayerPlan plan;
  };

  struct Sequence {
    PrefillSequence in;
    int rows = 0;  // in hidden
    bool cancelled = false;
    int row = -1;      // of the logits, when the pass is done
    int32_t best = 0;  // id of the largest
    absl::Duration gate_time;
    Leader leader;
  };

  // One sequence during one layer.
  struct Work {
    Sequence* sequence;
    int begin = 0;         // its first row in hidden
    int n = 0;             // its rows there
    int history = 0;       // K,V rows before them
    int window = 0;        // queries at the end that a gate reads
    int n_queries = 0;     // queries at the end that go through attention
    TensorView q;          // [n, n_q_heads, head_dim]
    TensorView k, v;       // [n_kv_heads, history + n, head_dim]
    TensorView positions;  // [n_kv_heads, history + n] i32
    TensorView lse;        // [n_q_heads, window]
    TensorView attention;  // [n_queries, n_q_heads, head_dim]
    KeptLayer kept;
    int n_onward = 0;   // rows that go on: the last ones, or
    TensorView onward;  // [n_onward] i32, ascending in 0 .. n - 1
  };

  explicit Impl(const Model* model)
      : model(model), ops(model->backend()->NewOps()), workspace(model->backend()) {}
  // Memory goes only when no op uses it any more.
  ~Impl() { ops->Sync().IgnoreError(); }

  absl::Status Start(std::vector<PrefillSequence> inputs);
  absl::Status Enter();
  absl::Status RunLayer();
  absl::Status RunLayer(std::vector<Work>& works);
  std::vector<Work> Works();
  absl::Status DropCancelled();
  absl::Status PrepareKv(const Model::QkvViews& qkv, Work& work);
  absl::StatusOr<TensorView> Attend(std::vector<Work>& works);
  const PropagationPolicy* Propagates(const Work& work) const;
  LayerView View(const Work& work) const;
  absl::StatusOr<LayerPlan> PlanRetention(LayerView view, Sequence& sequence);
  absl::Status Keep(Work& work);
  absl::Status Propagate(Work& work);
  absl::Status MoveOn(const std::vector<Work>& works, TensorView* attention);
  absl::Status ReadLogits();

  bool is_last() const { return layer == model->shape().n_layers - 1; }
  TensorView Hidden() const { return hidden.View(DType::kF32, {n_rows, model->shape().hidden}); }
  TensorView Positions() const { return positions.View(DType::kI32, {n_rows}); }

  const Model* const model;
  const std::unique_ptr<Ops> ops;
  Workspace workspace;  // one layer's scratch
  std::vector<Sequence> sequences;
  bool looking = false;  // only sequences that restart run, and nothing leaves
  int layer = 0;
  int n_rows = 0;
  TensorView logits;            // [n_rows, vocab] f32, when the pass is done
  Buffer hidden;                // [n_rows, hidden] f32
  Buffer positions;             // [n_rows] i32
  std::vector<Buffer> retired;  // read by queued ops: freed when these are done
};

absl::Status PrefillPass::Impl::Start(std::vector<PrefillSequence> inputs) {
  for (PrefillSequence& in : inputs) {
    looking = looking || Restarts(in);
    Sequence sequence;
    sequence.in = std::move(in);
    sequences.push_back(std::move(sequence));
  }
  return Enter();
}

// The tokens of all sequences, or of those that are looked at, before layer 0.
absl::Status PrefillPass::Impl::Enter() {
  std::vector<int32_t> ids, places;
  for (Sequence& sequence : sequences) {
    const PrefillSequence& in = sequence.in;
    const bool enters = !sequence.cancelled && (!looking || Restarts(in));
    sequence.rows = enters ? static_cast<int>(in.ids.size()) : 0;
    ids.insert(ids.end(), in.ids.begin(), in.ids.begin() + sequence.rows);
    for (int i = 0; i < sequence.rows; ++i) places.push_back(in.first_position + i);
  }
  retired.push_back(std::exchange(hidden, Buffer()));
  retired.push_back(std::exchange(positions, Buffer()));
  layer = 0;
  n_rows = static_cast<int>(ids.size());
  SLUICE_ASSIGN_OR_RETURN(hidden, model->backend()->Allocate(sizeof(float) * n_rows * model->shape().hidden));
  SLUICE_ASSIGN_OR_RETURN(positions, model->backend()->Allocate(sizeof(int32_t) * n_rows));
  SLUICE_ASSIGN_OR_RETURN(TensorView device_ids, workspace.Take(DType::kI32, {n_rows}));
  ops->CopyIn(ids.data(), device_ids);
  ops->CopyIn(places.data(), Positions());
  model->Embed(device_ids, Hidden(), *ops);
  return absl::OkStatus();
}

absl::Status PrefillPass::Impl::RunLayer() {
  workspace.Reset();
  SLUICE_RETURN_IF_ERROR(DropCancelled());
  std::vector<Work> works = Works();
  absl::Status status = RunLayer(works);
  if (!status.ok()) ops->Sync().IgnoreError();  // before the works go
  return status;
}

absl::Status PrefillPass::Impl::RunLayer(std::vector<Work>& works) {
  TensorView attention;
  if (!works.empty()) {
    SLUICE_ASSIGN_OR_RETURN(const Model::QkvViews qkv,
                            model->Qkv(LayerId(layer), Hidden(), Positions(), *ops, workspace));
    for (Work& work : works) SLUICE_RETURN_IF_ERROR(PrepareKv(qkv, work));
    SLUICE_ASSIGN_OR_RETURN(attention, Attend(works));
  }
  for (Work& work : works) {
    AttentionObserver* observer = work.sequence->in.observer;
    if (!looking && observer != nullptr)
      SLUICE_RETURN_IF_ERROR(observer->OnAttention(View(work), *ops, workspace));
    const absl::Time begin = SteadyClock().Now();
    if (!looking) SLUICE_RETURN_IF_ERROR(Keep(work));
    SLUICE_RETURN_IF_ERROR(Propagate(work));
    work.sequence->gate_time += SteadyClock().Now() - begin;
  }
  ops->Mark();
  const auto unread = static_cast<std::ptrdiff_t>(retired.size());  // past the mark
  // Rows that go no further need no MLP here.
  SLUICE_RETURN_IF_ERROR(MoveOn(works, &attention));
  if (n_rows == 0) {  // whoever was looked at has chosen
    looking = false;
    return Enter();
  }
  SLUICE_RETURN_IF_ERROR(model->Finish(LayerId(layer), attention, Hidden(), *ops, workspace));
  // The MLP runs while kept rows leave and the next layer is queued.
  SLUICE_RETURN_IF_ERROR(ops->Await());
  retired.erase(retired.begin(), retired.begin() + unread);
  if (!looking) {
    for (Work& work : works)
      SLUICE_RETURN_IF_ERROR(work.sequence->in.sink->OnKept(LayerId(layer), std::move(work.kept)));
  }
  if (is_last()) SLUICE_RETURN_IF_ERROR(ReadLogits());
  ++layer;
  return absl::OkStatus();
}

std::vector<PrefillPass::Impl::Work> PrefillPass::Impl::Works() {
  std::vector<Work> works;
  int begin = 0;
  for (Sequence& sequence : sequences) {
    if (sequence.rows == 0) continue;
    Work work;
    work.sequence = &sequence;
    work.begin = begin;
    work.n = sequence.rows;
    work.history = HistoryRows(sequence.in, layer);
    work.n_onward = is_last() ? 1 : work.n;
    begin += work.n;
    works.push_back(std::move(work));
  }
  return works;
}

absl::Status PrefillPass::Impl::DropCancelled() {
  std::vector<Work> works = Works();
  for (Work& work : works) work.n_onward = work.sequence->cancelled ? 0 : work.n;
  return MoveOn(works, nullptr);
}

// K,V of the history and of the new tokens side by side, with their positions.
absl::Status PrefillPass::Impl::PrepareKv(const Model::QkvViews& qkv, Work& work) {
  const KvShape& shape = model->kv_shape();
  const int heads = shape.n_kv_heads, end = work.begin + work.n, total = work.history + work.n;
  SLUICE_ASSIGN_OR_RETURN(work.k, workspace.Take(shape.dtype, {heads, total, shape.head_dim}));
  SLUICE_ASSIGN_OR_RETURN(work.v, workspace.Take(shape.dtype, {heads, total, shape.head_dim}));
  // One row of positions serves all heads.
  TensorView own = Positions().Slice(0, work.begin, end);
  own.rank = 2;
  own.shape = {heads, work.n, 0, 0};
  own.stride = {0, 1, 0, 0};
  work.positions = own;
  if (work.history > 0) {
    SLUICE_ASSIGN_OR_RETURN(work.positions, workspace.Take(DType::kI32, {heads, total}));
    SLUICE_RETURN_IF_ERROR(work.sequence->in.history->Read(LayerId(layer), work.k.Slice(1, 0, work.history),
                                                           work.v.Slice(1, 0, work.history),
                                                           work.positions.Slice(1, 0, work.history), *ops));
    ops->Copy(own, work.positions.Slice(1, work.history, total));
  }
  const TensorView new_k = work.k.Slice(1, work.history, total), new_v = work.v.Slice(1, work.history, total);
  ops->StoreKv(qkv.k.Slice(0, work.begin, end), qkv.v.Slice(0, work.begin, end), new_k, new_v);
  work.q = qkv.q.Slice(0, work.begin, end);
  PrefillSink& sink = *work.sequence->in.sink;
  return sink.wants_new_rows() ? sink.OnNewRows(LayerId(layer), new_k, new_v, *ops) : absl::OkStatus();
}

// Attention of all sequences, [sum of n_queries, n_q_heads, head_dim]. In the last layer only the last token
// goes on, so that only it and the windows of the gates are asked for.
absl::StatusOr<TensorView> PrefillPass::Impl::Attend(std::vector<Work>& works) {
  const KvShape& shape = model->kv_shape();
  int total = 0;
  for (Work& work : works) {
    const ResolvedGates& gates = work.sequence->in.gates;
    if (!looking) work.window = RetentionPolicyOf(gates.retention.kind).window(gates.retention);
    if (const PropagationPolicy* propagation = Propagates(work))
      work.window = std::max(work.window, propagation->window(gates.propagation));
    if (const AttentionObserver* observer = work.sequence->in.observer; observer != nullptr && !looking)
      work.window = std::max(work.window, observer->queries());
    work.window = std::min(work.window, work.n);
    work.n_queries = is_last() ? std::max(work.window, 1) : work.n;
    total += work.n_queries;
  }
  SLUICE_ASSIGN_OR_RETURN(TensorView out,
                          workspace.Take(model->attention_dtype(), {total, shape.n_q_heads, shape.head_dim}));
  std::vector<AttentionArgs> calls;
  int begin = 0;
  for (Work& work : works) {
    work.attention = out.Slice(0, begin, begin + work.n_queries);
    begin += work.n_queries;
    if (work.window > 0) {
      SLUICE_ASSIGN_OR_RETURN(work.lse, workspace.Take(DType::kF32, {shape.n_q_heads, work.window}));
    }
    calls.push_back({.q = work.q.Slice(0, work.n - work.n_queries, work.n),
                     .k = work.k,
                     .v = work.v,
                     .out = work.attention,
                     .lse = work.lse,
                     .positions = work.positions,
                     .sliding_window = model->shape().sliding_window[layer]});
  }
  ops->Attention(calls);
  return out;
}

// Layers in groups of `reuse` keep the rows that the first of them chose.
absl::StatusOr<LayerPlan> PrefillPass::Impl::PlanRetention(LayerView view, Sequence& sequence) {
  const RetentionGate& gate = sequence.in.gates.retention;
  Leader& leader = sequence.leader;
  const bool follows = gate.reuse > 1 && layer % gate.reuse != 0 && leader.n_tokens == view.n_tokens;
  if (follows) view.leader = &leader.plan;
  LayerPlan plan;
  SLUICE_RETURN_IF_ERROR(RetentionPolicyOf(gate.kind).Plan(view, gate, *ops, workspace, &plan));
  if (gate.reuse > 1 && !follows) {
    const int64_t heads = plan.rows.shape[0], capacity = plan.rows.shape[1];
    SLUICE_ASSIGN_OR_RETURN(leader.memory, model->backend()->Allocate(sizeof(int32_t) * heads * capacity));
    leader.n_tokens = view.n_tokens;
    leader.plan = {leader.memory.View(DType::kI32, {heads, capacity}), plan.kept};
    ops->Copy(plan.rows, leader.plan.rows);
  }
  return plan;
}

// The gate's policy, in the layer where it chooses among the rows; null elsewhere.
const PropagationPolicy* PrefillPass::Impl::Propagates(const Work& work) const {
  const PropagationGate& gate = work.sequence->in.gates.propagation;
  return layer == gate.layer && work.n > gate.rows ? PropagationPolicyOf(gate.kind) : nullptr;
}

LayerView PrefillPass::Impl::View(const Work& work) const {
  return {.layer = LayerId(layer),
          .n_tokens = work.history + work.n,
          .positions = work.positions,
          .q_window = work.q.Slice(0, work.n - work.window, work.n),
          .k = work.k,
          .window_lse = work.lse,
          .sliding_window = model->shape().sliding_window[layer]};
}

absl::Status PrefillPass::Impl::Keep(Work& work) {
  const KvShape& shape = model->kv_shape();
  SLUICE_ASSIGN_OR_RETURN(const LayerPlan plan, PlanRetention(View(work), *work.sequence));
  KeptLayer& kept = work.kept;
  kept.kept = plan.kept;
  const int64_t rows = kept.total();
  SLUICE_ASSIGN_OR_RETURN(kept.k, model->backend()->Allocate(rows * shape.row_bytes()));
  SLUICE_ASSIGN_OR_RETURN(kept.v, model->backend()->Allocate(rows * shape.row_bytes()));
  SLUICE_ASSIGN_OR_RETURN(kept.positions, model->backend()->Allocate(rows * sizeof(int32_t)));
  ops->GatherKv(work.k, work.v, work.positions, plan.rows, kept.kept,
                kept.k.View(shape.dtype, {rows, shape.head_dim}),
                kept.v.View(shape.dtype, {rows, shape.head_dim}), kept.positions.View(DType::kI32, {rows}));
  return absl::OkStatus();
}

// At the propagation layer, what goes on: in work.onward, or as the sequence's new prompt.
absl::Status PrefillPass::Impl::Propagate(Work& work) {
  const PropagationPolicy* policy = Propagates(work);
  if (policy == nullptr) return absl::OkStatus();
  PrefillSequence& in = work.sequence->in;
  const PropagationGate& gate = in.gates.propagation;
  TensorView rows;
  SLUICE_RETURN_IF_ERROR(policy->Rows(View(work), gate, *ops, workspace, &rows));
  if (!policy->restarts()) {
    work.n_onward = gate.rows;
    work.onward = rows;
    return absl::OkStatus();
  }
  std::vector<int32_t> chosen(gate.rows);
  ops->CopyOut(rows, chosen.data());
  SLUICE_RETURN_IF_ERROR(ops->Sync());
  for (int32_t& row : chosen) row = in.ids[row];
  in.ids = std::move(chosen);
  in.first_position = 0;
  work.n_onward = 0;
  return absl::OkStatus();
}

// Leaves in hidden, positions and (unless null) attention the rows that go on.
absl::Status PrefillPass::Impl::MoveOn(const std::vector<Work>& works, TensorView* attention) {
  int total = 0;
  for (const Work& work : works) total += work.n_onward;
  if (total == n_rows) return absl::OkStatus();
  if (total == 0) {
    for (const Work& work : works) work.sequence->rows = 0;
    n_rows = 0;
    return absl::OkStatus();
  }
  const ModelShape& shape = model->shape();
  const int64_t width = static_cast<int64_t>(shape.n_q_heads) * shape.head_dim;
  SLUICE_ASSIGN_OR_RETURN(Buffer new_hidden,
                          model->backend()->Allocate(sizeof(float) * total * shape.hidden));
  SLUICE_ASSIGN_OR_RETURN(Buffer new_positions, model->backend()->Allocate(sizeof(int32_t) * total));
  const TensorView hidden_out = new_hidden.View(DType::kF32, {total, shape.hidden});
  const TensorView positions_out = new_positions.View(DType::kI32, {total, 1});
  TensorView attention_out;
  if (attention != nullptr) {
    SLUICE_ASSIGN_OR_RETURN(attention_out, workspace.Take(attention->dtype, {total, width}));
  }

  int begin = 0;
  for (const Work& work : works) {
    const int end = begin + work.n_onward;
    // x: the sequence's rows, or its last ones.
    auto move = [&](TensorView x, TensorView out) {
      const TensorView target = out.Slice(0, begin, end);
      if (work.onward.empty())
        ops->Copy(x.Slice(0, x.shape[0] - work.n_onward, x.shape[0]), target);
      else
        ops->GatherRows(x, work.onward, target);
    };
    if (work.n_onward > 0) {
      move(Hidden().Slice(0, work.begin, work.begin + work.n), hidden_out);
      move(positions.View(DType::kI32, {n_rows, 1}).Slice(0, work.begin, work.begin + work.n), positions_out);
      if (attention != nullptr) {
        const TensorView rows =
            TensorView::Contiguous(work.attention.data, attention->dtype, {work.attention.shape[0], width});
        move(Words(rows), Words(attention_out));
      }
    }
    work.sequence->rows = work.n_onward;
    begin = end;
  }
  retired.push_back(std::exchange(hidden, std::move(new_hidden)));
  retired.push_back(std::exchange(positions, std::move(new_positions)));
  n_rows = total;
  if (attention != nullptr) {
    *attention = TensorView::Contiguous(attention_out.data, attention->dtype,
                                        {total, shape.n_q_heads, shape.head_dim});
  }
  return absl::OkStatus();
}

absl::Status PrefillPass::Impl::ReadLogits() {
  workspace.Reset();
  SLUICE_ASSIGN_OR_RETURN(logits, workspace.Take(DType::kF32, {n_rows, model->shape().vocab}));
  SLUICE_ASSIGN_OR_RETURN(const TensorView best, workspace.Take(DType::kI32, {n_rows}));
  SLUICE_RETURN_IF_ERROR(model->Logits(Hidden(), logits, *ops, workspace));
  ops->ArgMax(logits, best);
  std::vector<int32_t> ids(n_rows);
  ops->CopyOut(best, ids.data());
  SLUICE_RETURN_IF_ERROR(ops->Sync());
  int row = 0;
  for (Sequence& sequence : sequences) {
    if (sequence.rows == 0) continue;
    sequence.best = ids[row];
    sequence.row = row++;
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<PrefillPass>> PrefillPass::Create(const Model* model,
                                                                 std::vector<PrefillSequence> sequences) {
  for (size_t i = 0; i < sequences.size(); ++i) {
    absl::Status status = CheckSequence(sequences[i], model->shape());
    if (!status.ok())
      return absl::Status(status.code(), absl::StrCat("sequence ", i, ": ", status.message()));
  }
  auto impl = std::make_unique<Impl>(model);
  SLUICE_RETURN_IF_ERROR(impl->Start(std::move(sequences)));
  return std::unique_ptr<PrefillPass>(new PrefillPass(std::move(impl)));
}

PrefillPass::PrefillPass(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
PrefillPass::~PrefillPass() = default;

int PrefillPass::layers_done() const { return impl_->looking ? 0 : impl_->layer; }

bool PrefillPass::done() const {
  return impl_->layer == impl_->model->shape().n_layers ||
         std::all_of(impl_->sequences.begin(), impl_->sequences.end(),
                     [](const Impl::Sequence& sequence) { return sequence.cancelled; });
}

absl::Status PrefillPass::RunLayer() {
  if (done()) return absl::FailedPreconditionError("the pass is done");
  return impl_->RunLayer();
}

void PrefillPass::Cancel(int sequence) { impl_->sequences[sequence].cancelled = true; }

absl::StatusOr<std::vector<float>> PrefillPass::LastLogits(int sequence) {
  SLUICE_RETURN_IF_ERROR(LastBest(sequence).status());
  std::vector<float> logits(impl_->model->shape().vocab);
  impl_->ops->CopyOut(impl_->logits.At(impl_->sequences[sequence].row), logits.data());
  SLUICE_RETURN_IF_ERROR(impl_->ops->Sync());
  return logits;
}

absl::StatusOr<int32_t> PrefillPass::LastBest(int sequence) const {
  const Impl::Sequence& state = impl_->sequences[sequence];
  if (state.cancelled || state.row < 0)
    return absl::FailedPreconditionError("no logits: the sequence was cancelled or the pass is not done");
  if (state.best < 0) return absl::InternalError("non-finite logits");
  return state.best;
}

absl::Duration PrefillPass::gate_time(int sequence) const { return impl_->sequences[sequence].gate_time; }

size_t PrefillPass::ScratchBytes(const Model& model, int tokens, int history_rows) {
  const ModelShape& shape = model.shape();
  const size_t n = tokens, len = n + history_rows,
               chunk = std::min<size_t>(n, model.backend()->rows_at_once());
  const size_t q_width = static_cast<size_t>(shape.n_q_heads) * shape.head_dim,
               kv_width = static_cast<size_t>(shape.n_kv_heads) * shape.head_dim;
  // Hidden states, attention and positions, twice where rows are left behind; q, k and v of the new rows.
  size_t words = 2 * n * (shape.hidden + q_width + 1) + n * (q_width + 2 * kv_width);
  // Positions of every head; the gates' row numbers, scores and pooled scores, and what is made per query
  // head.
  words += 5 * len * shape.n_kv_heads + 3 * len * shape.n_q_heads;
  // Twice: where fewer rows go on, tensors may not fit the blocks that earlier layers took for them.
  words += 2 * chunk * (2 * shape.hidden + 3 * static_cast<size_t>(shape.intermediate));
  words += shape.vocab;
  const size_t kv = 2 * len * shape.n_kv_heads * model.kv_shape().row_bytes();
  constexpr size_t kBlockSlack = size_t{8} << 20;  // ends of the workspace's blocks
  return 4 * words + kv + kBlockSlack;
}

}  // namespace sluice
