#include "common/engine/decode_step.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/model/model_dir.h"
#include "tests/support/counting_backend.h"
#include "tests/support/local_engine.h"
#include "tests/support/test_model.h"

namespace sluice {
namespace {

using ::testing::HasSubstr;

// n sequences of one token each.
struct Batch {
  std::unique_ptr<LocalDecoder> decoder;
  std::vector<std::unique_ptr<SequenceKv>> sequences;
  std::vector<DecodeRow> rows;
};

Batch OneTokenSequences(const Model& model, int n) {
  std::vector<LocalRequest> requests;
  for (int i = 0; i < n; ++i) requests.push_back({.ids = {10 + i}});
  auto prefills = PrefillTogether(model, requests);
  EXPECT_TRUE(prefills.ok()) << prefills.status();
  Batch batch;
  batch.decoder = *LocalDecoder::Create(model, n, size_t{2} << 30);
  for (int i = 0; i < n; ++i) {
    auto kv = batch.decoder->Receive((*prefills)[i], {}, 1);
    EXPECT_TRUE(kv.ok()) << kv.status();
    batch.sequences.push_back(*std::move(kv));
    batch.rows.push_back({.kv = batch.sequences.back().get(), .token = 7, .position = LogicalLen(1)});
  }
  return batch;
}

TEST(DecodeStep, RefusesTokensAndPositionsThatTheModelDoesNotHave) {
  Batch batch = OneTokenSequences(NeedleModel(), 2);
  batch.rows[1].token = 4096;
  auto step = batch.decoder->Step(batch.rows);
  EXPECT_EQ(step.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(step.status().message()), HasSubstr("row 1: token id 4096"));
  batch.rows[1].token = 7;
  batch.rows[1].position = LogicalLen(32768);
  step = batch.decoder->Step(batch.rows);
  EXPECT_EQ(step.status().code(), absl::StatusCode::kOutOfRange);
  EXPECT_THAT(std::string(step.status().message()), HasSubstr("row 1: position 32768"));
  EXPECT_EQ(batch.sequences[0]->kept(LayerId(0), 0), 1);
}

TEST(DecodeStep, AnEmptyBatchIsNoStep) {
  auto decoder = LocalDecoder::Create(NeedleModel());
  ASSERT_TRUE(decoder.ok());
  auto step = (*decoder)->Step({});
  ASSERT_TRUE(step.ok());
  EXPECT_TRUE(step->empty());
}

// 300 rows of logits need a block of their own, after every layer has appended: the step fails late.
TEST(DecodeStep, AFailedStepAddsNothingAndCanBeRepeated) {
  auto cpu = *NewCpuBackend({});
  CountingBackend backend(cpu.get());
  auto files = *OpenModel(SourcePath("models/needle-14m"));
  auto model = *Model::Load(files.shape, files.weights, &backend, {});
  constexpr int kRows = 300;

  std::vector<std::vector<float>> expected;
  {
    Batch batch = OneTokenSequences(*model, kRows);
    auto step = batch.decoder->Step(batch.rows);
    ASSERT_TRUE(step.ok()) << step.status();
    for (auto row : *step) expected.emplace_back(row.begin(), row.end());
  }
  Batch batch = OneTokenSequences(*model, kRows);
  // Warm up with few rows, so that only the logits of all rows ask for more memory.
  const std::vector<DecodeRow> one = {batch.rows[0]};
  ASSERT_TRUE(batch.decoder->Step(one).ok());
  EXPECT_EQ(batch.sequences[0]->kept(LayerId(7), 1), 2);
  batch.rows.erase(batch.rows.begin());

  backend.set_empty(true);
  auto failed = batch.decoder->Step(batch.rows);
  EXPECT_EQ(failed.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(batch.sequences[1]->kept(LayerId(0), 0), 1);
  backend.set_empty(false);
  auto step = batch.decoder->Step(batch.rows);
  ASSERT_TRUE(step.ok()) << step.status();
  EXPECT_EQ(batch.sequences[1]->kept(LayerId(0), 0), 2);
  for (size_t i = 0; i < batch.rows.size(); ++i)
    ASSERT_EQ(std::vector<float>((*step)[i].begin(), (*step)[i].end()), expected[i + 1]) << i;
}

}  // namespace
}  // namespace sluice
