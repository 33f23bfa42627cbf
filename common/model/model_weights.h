// Role: the weights of one model by their meaning, decoded to f32 in the order the model code computes in.
// Why: after Create, nothing about the file can fail any more but a wrong question; every tensor was found,
// has the shape the configuration asks for, and no tensor is left over. Threads: immutable; any thread may
// read.
#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/model/model_shape.h"
#include "common/model/tensor_names.h"
#include "common/weights/weight_file.h"

namespace sluice {

class ModelWeights {
 public:
  // InvalidArgument names the file and the tensor that is missing, misshapen or unknown.
  static absl::StatusOr<ModelWeights> Create(std::shared_ptr<const WeightFile> file, const ModelShape& shape,
                                             WeightLayout layout);

  // The same file seen by one of n ranks: Read gives its part of every weight (SplitOf). n divides the parts.
  ModelWeights OfRank(int rank, int n) const;
  int rank() const { return rank_; }

  // Rows [row_begin, row_end) of a matrix in Hugging Face order, f32; a vector is one row. out holds exactly
  // (row_end - row_begin) * row length floats. kLmHead of a tied model reads the embedding.
  absl::Status Read(WeightId id, int64_t row_begin, int64_t row_end, absl::Span<float> out) const;
  absl::StatusOr<std::vector<float>> ReadAll(WeightId id) const;

  uint64_t Digest() const { return file_->Digest(); }

 private:
  ModelWeights(std::shared_ptr<const WeightFile> file, WeightLayout layout, int head_dim, bool tied)
      : file_(std::move(file)), layout_(layout), head_dim_(head_dim), tied_(tied) {}
  absl::StatusOr<TensorInfo> Find(WeightId id) const;
  absl::Status ReadWhole(const TensorInfo& tensor, Weight weight, int64_t row_begin, int64_t row_end,
                         absl::Span<float> out) const;
  bool Interleaved(Weight weight) const;

  std::shared_ptr<const WeightFile> file_;
  WeightLayout layout_;
  int head_dim_;
  bool tied_;
  int rank_ = 0, ranks_ = 1;
};

}  // namespace sluice
