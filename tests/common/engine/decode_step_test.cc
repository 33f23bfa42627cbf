#include "common/engine/decode_step.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/engine/sampler.h"
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

TEST(DecodeStep, RulesDrawWhatTheSamplerDrawsFromTheSameLogits) {
  Batch plain = OneTokenSequences(NeedleModel(), 3);
  auto best = plain.decoder->Step(plain.rows);
  ASSERT_TRUE(best.ok()) << best.status();
  const SamplingParams warm{.temperature = 5, .top_p = 0.9f, .seed = 3};
  const SamplingParams penalized{.presence_penalty = 1000};
  SampleState seen;
  seen.AddOutput((*best)[2].token);
  const SampleRule rules[] = {RuleFor(warm, {}, 1), RuleFor(penalized, seen, 1)};

  Batch batch = OneTokenSequences(NeedleModel(), 3);
  batch.rows[0].rule = &rules[0];
  batch.rows[2].rule = &rules[1];
  auto drawn = batch.decoder->Step(batch.rows);
  ASSERT_TRUE(drawn.ok()) << drawn.status();
  EXPECT_EQ((*drawn)[0].token, *SampleToken((*best)[0].logits, warm, {}, 1));
  EXPECT_EQ((*drawn)[1].token, (*best)[1].token);
  EXPECT_EQ((*drawn)[2].token, *SampleToken((*best)[2].logits, penalized, seen, 1));
  EXPECT_NE((*drawn)[2].token, (*best)[2].token);
  for (int i = 0; i < 3; ++i) EXPECT_EQ((*drawn)[i].logits, (*best)[i].logits) << "as the model made them";
}

// Each attempt gets one block of memory more than the last, and so fails later: before, inside and after a
// layer that has appended.
TEST(DecodeStep, AFailedStepAddsNothingAndCanBeRepeated) {
  auto cpu = *NewCpuBackend({});
  CountingBackend backend(cpu.get());
  auto files = *OpenModel(SourcePath("models/needle-14m"));
  auto model = *Model::Load(files.shape, files.weights, &backend, {});
  constexpr int kRows = 1100;

  std::vector<std::vector<float>> expected;
  {
    Batch batch = OneTokenSequences(*model, kRows);
    auto step = batch.decoder->Step(batch.rows);
    ASSERT_TRUE(step.ok()) << step.status();
    for (const DecodeResult& row : *step) expected.emplace_back(row.logits.begin(), row.logits.end());
  }
  Batch batch = OneTokenSequences(*model, kRows);
  int failures = 0;
  for (backend.Allow(0);; backend.Allow(1), ++failures) {
    auto step = batch.decoder->Step(batch.rows);
    if (!step.ok()) {
      EXPECT_EQ(step.status().code(), absl::StatusCode::kResourceExhausted);
      ASSERT_EQ(batch.sequences[1]->kept(LayerId(0), 0), 1);
      ASSERT_LT(failures, 100);
      continue;
    }
    EXPECT_EQ(batch.sequences[1]->kept(LayerId(0), 0), 2);
    for (size_t i = 0; i < batch.rows.size(); ++i) {
      const absl::Span<const float> logits = (*step)[i].logits;
      ASSERT_EQ(std::vector<float>(logits.begin(), logits.end()), expected[i]) << i;
      ASSERT_EQ((*step)[i].token, Greedy(logits)) << i;
    }
    break;
  }
  EXPECT_GE(failures, 4);
}

}  // namespace
}  // namespace sluice
