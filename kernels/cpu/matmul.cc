#include <algorithm>

#include "common/base/status.h"
#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/packed_matrix.h"
#include "kernels/views.h"

namespace sluice {

// Rows of x in blocks that fit the cache; the panels of a block are the tasks. How work is cut changes no bit
// of the result (isa/matmul_f32.cc).
void CpuOps::MatMul(TensorView x, const Matrix& w, TensorView bias, bool accumulate, TensorView out) {
  const auto& packed = static_cast<const PackedMatrix&>(w);
  const MatMulKernels& kernels = *kernels_.matmul;
  const int n = static_cast<int>(x.shape[0]), cols = static_cast<int>(w.cols());
  SLUICE_CHECK(Is(x, DType::kF32, {n, w.cols()}) && Is(out, DType::kF32, {n, w.rows()}));
  SLUICE_CHECK(bias.empty() || Is(bias, DType::kF32, {w.rows()}));
  if (n == 0) return;

  const int block_rows = std::min(n, kernels.block_rows);
  ThreadScratch scratch;
  char* activations = ReserveShared(kernels.packed_bytes(block_rows, cols));
  if (activations == nullptr || !ReserveThreadScratch(kernels.scratch_bytes(block_rows, cols), &scratch))
    return;

  // A task is worth some 64K multiply-adds, and there are enough of them that a late thread does no harm.
  const int steps = (packed.n_panels() + kernels.panel_step - 1) / kernels.panel_step;
  const int64_t step_cost = int64_t{kPanelRows} * kernels.panel_step * cols * block_rows;
  const int tasks = static_cast<int>(
      std::clamp<int64_t>(steps * step_cost / (64 << 10), 1, std::min(steps, 8 * pool_.threads())));
  for (int row = 0; row < n; row += block_rows) {
    MatMulBlock block;
    block.x = Row<float>(x, row);
    block.x_stride = x.stride[0];
    block.n = std::min(block_rows, n - row);
    block.cols = cols;
    block.panels = packed.panels();
    block.rows = static_cast<int>(w.rows());
    block.bias = bias.as<float>();
    block.accumulate = accumulate;
    block.out = Row<float>(out, row);
    block.out_stride = out.stride[0];
    const int parts = kernels.k_blocks(block.n, cols);
    ForRange(parts, int64_t{2} * block.n * cols / parts, [&](int64_t begin, int64_t end) {
      for (int64_t part = begin; part < end; ++part) kernels.pack(block, static_cast<int>(part), activations);
    });
    pool_.Run(tasks, [&](int task, int thread) {
      const int begin = static_cast<int>(int64_t{steps} * task / tasks) * kernels.panel_step;
      const int end = static_cast<int>(int64_t{steps} * (task + 1) / tasks) * kernels.panel_step;
      kernels.run(block, activations, begin, std::min(end, packed.n_panels()), scratch.of(thread));
    });
  }
}

}  // namespace sluice
