#include "common/kvcache/decode_cache.h"

#include <numeric>
#include <random>
#include <thread>

#include "common/base/status.h"
#include "common/kvcache/sequence_kv.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/cpu/cpu_backend.h"

namespace sluice {
namespace {

using ::testing::ElementsAre;
using ::testing::Ge;
using ::testing::HasSubstr;
using Selection = std::array<int32_t, 4>;

constexpr Selection kDense = {0, 0, 0, 0};
constexpr int kDim = 16;
constexpr KvShape kShape = {
    .n_layers = 3, .n_q_heads = 4, .n_kv_heads = 2, .head_dim = kDim, .dtype = DType::kF32};
constexpr int kHeads = 6;  // layers x KV heads
constexpr size_t kPageBytes = 2 * 64 * kDim * 4;

DecodeCacheOptions SomeOptions() {
  DecodeCacheOptions options;
  options.n_slots = 5;
  options.max_rows = 1000;
  options.memory_bytes = 120 * kPageBytes;
  return options;
}

class DecodeCacheTest : public ::testing::Test {
 protected:
  void Make(const DecodeCacheOptions& options) {
    auto cache = DecodeCache::Create(backend_.get(), kShape, options);
    ASSERT_TRUE(cache.ok()) << cache.status();
    cache_ = *std::move(cache);
  }
  void ExpectNothingTaken() {
    EXPECT_EQ(cache_->pages().free_pages(), cache_->pages().total_pages());
    EXPECT_EQ(cache_->chunks().free_pages(), cache_->chunks().total_pages());
    EXPECT_EQ(cache_->free_slots(), SomeOptions().n_slots);
  }
  static std::vector<int> Rows(int n) { return std::vector<int>(kHeads, n); }
  // The number that stands in every channel of a row's K; V has its negative.
  static float Mark(int sequence, int layer, int head, int row) {
    return static_cast<float>(((sequence * 3 + layer) * 2 + head) * 2000 + row);
  }
  // Rows [begin, begin + n) through Write, at positions 2 * row.
  absl::Status Write(SequenceKv& kv, int sequence, int layer, int head, int begin, int n) {
    std::vector<float> k, v;
    std::vector<int32_t> positions;
    for (int row = begin; row < begin + n; ++row) {
      k.insert(k.end(), kDim, Mark(sequence, layer, head, row));
      v.insert(v.end(), kDim, -Mark(sequence, layer, head, row));
      positions.push_back(2 * row);
    }
    return kv.Write(LayerId(layer), head, begin, TensorView::Contiguous(k.data(), DType::kF32, {n, kDim}),
                    TensorView::Contiguous(v.data(), DType::kF32, {n, kDim}), positions, *ops_);
  }
  void ExpectContents(const SequenceKv& kv, int sequence) {
    for (int layer = 0; layer < 3; ++layer) {
      const PagedKv view = cache_->View(LayerId(layer), TensorView());
      for (int head = 0; head < 2; ++head) {
        ASSERT_EQ(Entry(view.kept_len, kv.slot(), head), kv.kept(LayerId(layer), head));
        for (int row = 0; row < kv.kept(LayerId(layer), head); ++row) {
          const float* k = Row(view, kv.slot(), head, row);
          for (int d = 0; d < kDim; ++d) {
            ASSERT_EQ(k[d], Mark(sequence, layer, head, row));
            ASSERT_EQ(k[64 * kDim + d], -Mark(sequence, layer, head, row));
          }
        }
      }
    }
  }
  // K of a row in its page; its V lies 64 rows behind.
  static const float* Row(const PagedKv& view, int slot, int head, int row) {
    const int32_t page = Entry(view.page_table, slot, head, row / 64);
    SLUICE_CHECK(page >= 0);
    return static_cast<const float*>(view.pages) + (int64_t{128} * page + row % 64) * kDim;
  }
  static int32_t& Entry(TensorView table, int slot, int head, int column = 0) {
    return table.as<int32_t>()[slot * table.stride[0] + head * table.stride[1] + column * table.stride[2]];
  }

  const std::unique_ptr<Backend> backend_ = *NewCpuBackend({});
  const std::unique_ptr<Ops> ops_ = backend_->NewOps();
  std::unique_ptr<DecodeCache> cache_;
};

TEST_F(DecodeCacheTest, TablesPagesAndBoundsShareOneBudget) {
  Make(SomeOptions());
  const size_t tables = 64 * ((5 * kHeads * 16 * 4 + 63) / 64 + (5 * kHeads * 8 * 4 + 63) / 64 + 3 * 2 + 2 +
                              5 * kHeads * kDim * 4 / 64);
  const size_t used = tables + cache_->pages().total_pages() * cache_->pages().page_bytes() +
                      cache_->chunks().total_pages() * cache_->chunks().page_bytes();
  EXPECT_LE(used, SomeOptions().memory_bytes);
  EXPECT_GT(used + kPageBytes, SomeOptions().memory_bytes);
  EXPECT_NEAR(cache_->chunks().total_pages(), 0.25 * (SomeOptions().memory_bytes - tables) / kPageBytes, 1);
  ExpectNothingTaken();
}

TEST_F(DecodeCacheTest, BadOptionsAreNamed) {
  DecodeCacheOptions options = SomeOptions();
  options.memory_bytes = 5 * kPageBytes;
  EXPECT_THAT(DecodeCache::Create(backend_.get(), kShape, options).status().message(),
              HasSubstr("memory_bytes"));
  options = SomeOptions();
  options.max_rows = 0;
  EXPECT_THAT(DecodeCache::Create(backend_.get(), kShape, options).status().message(), HasSubstr("max_rows"));
  options = SomeOptions();
  options.bounds_share = 1;
  EXPECT_THAT(DecodeCache::Create(backend_.get(), kShape, options).status().message(),
              HasSubstr("bounds_share"));
}

TEST_F(DecodeCacheTest, ChunksCover128RowsAtPageSizeOneAnd64PagesOtherwise) {
  Make(SomeOptions());
  struct {
    int page, rows, chunks;
  } cases[] = {{0, 1000, 0}, {1, 1, 1},   {1, 128, 1}, {1, 129, 2},   {2, 128, 1},
               {2, 129, 2},  {3, 192, 1}, {3, 193, 2}, {16, 1000, 1}, {1, 0, 0}};
  for (const auto& c : cases) {
    const int free = cache_->chunks().free_pages();
    std::vector<int> rows = Rows(0);
    rows[3] = c.rows;
    auto kv = cache_->NewSequence({c.page, 4, 8}, rows);
    ASSERT_TRUE(kv.ok()) << kv.status();
    EXPECT_EQ(free - cache_->chunks().free_pages(), c.chunks) << "p " << c.page << " rows " << c.rows;
  }
  ExpectNothingTaken();
}

TEST_F(DecodeCacheTest, NewSequenceIsAllOrNothing) {
  Make(SomeOptions());
  EXPECT_EQ(cache_->NewSequence(kDense, Rows(1000)).status().code(), absl::StatusCode::kResourceExhausted);
  ExpectNothingTaken();
  // Pages would do, bounds do not: 5 chunks x 6 heads of about 29.
  auto kv = cache_->NewSequence({1, 4, 8}, Rows(640));
  EXPECT_EQ(kv.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(kv.status().message(), HasSubstr("kv bounds: need 30"));
  ExpectNothingTaken();
  EXPECT_EQ(cache_->NewSequence(kDense, Rows(1001)).status().code(), absl::StatusCode::kInvalidArgument);

  std::vector<std::unique_ptr<SequenceKv>> all;
  for (int i = 0; i < 5; ++i) all.push_back(*cache_->NewSequence(kDense, Rows(1)));
  auto sixth = cache_->NewSequence(kDense, Rows(1));
  EXPECT_EQ(sixth.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(sixth.status().message(), HasSubstr("5 slots"));
  all.clear();
  ExpectNothingTaken();
}

TEST_F(DecodeCacheTest, RowsOutOfOrderAreRefusedAndChangeNothing) {
  Make(SomeOptions());
  auto kv = *cache_->NewSequence(kDense, Rows(100));
  ASSERT_TRUE(Write(*kv, 0, 1, 1, 0, 70).ok());
  EXPECT_THAT(Write(*kv, 0, 1, 1, 71, 5).message(),
              HasSubstr("layer 1 KV head 1: rows start at 71, expected 70"));
  EXPECT_THAT(Write(*kv, 0, 1, 1, 0, 5).message(), HasSubstr("expected 70"));
  EXPECT_THAT(Write(*kv, 0, 1, 1, 70, 59).message(), HasSubstr("rows end at 129, reserved 128"));
  EXPECT_THAT(Write(*kv, 0, 3, 0, 0, 1).message(), HasSubstr("3 layers"));
  EXPECT_THAT(Write(*kv, 0, 0, 2, 0, 1).message(), HasSubstr("2 KV heads"));
  std::vector<float> row(kDim);
  const TensorView one = TensorView::Contiguous(row.data(), DType::kF32, {1, kDim});
  EXPECT_THAT(kv->Write(LayerId(1), 1, 70, one, one, {138}, *ops_).message(), HasSubstr("must ascend"));
  EXPECT_EQ(kv->kept(LayerId(1), 1), 70);
  EXPECT_TRUE(kv->Write(LayerId(1), 1, 70, one, one, {139}, *ops_).ok());
}

TEST_F(DecodeCacheTest, FinishWritesGivesBackWhatGrowthDoesNotNeed) {
  Make(SomeOptions());
  const int free = cache_->pages().free_pages();
  auto kv = *cache_->NewSequence({3, 4, 8}, Rows(500));
  EXPECT_EQ(free - cache_->pages().free_pages(), 8 * kHeads);
  for (int layer = 0; layer < 3; ++layer) {
    for (int head = 0; head < 2; ++head) ASSERT_TRUE(Write(*kv, 0, layer, head, 0, 60 + layer).ok());
  }
  // Marks that an upload of the tables would overwrite.
  for (int layer = 0; layer < 3; ++layer) {
    const PagedKv view = cache_->View(LayerId(layer), TensorView());
    for (int column = layer == 2 ? 2 : 1; column < 8; ++column) {
      ASSERT_GE(Entry(view.page_table, kv->slot(), 1, column), 0);
      Entry(view.page_table, kv->slot(), 1, column) = -7;
    }
  }
  kv->FinishWrites(3, *ops_);  // 63, 64 and 65 rows
  EXPECT_EQ(free - cache_->pages().free_pages(), 2 * (1 + 1 + 2));
  EXPECT_EQ(cache_->chunks().total_pages() - cache_->chunks().free_pages(), kHeads);
  ExpectContents(*kv, 0);
  for (int layer = 0; layer < 3; ++layer) {
    const PagedKv view = cache_->View(LayerId(layer), TensorView());
    for (int column = 0; column < 16; ++column) {
      const int32_t entry = Entry(view.page_table, kv->slot(), 1, column);
      if (column < (layer == 2 ? 2 : 1)) {
        EXPECT_GE(entry, 0);
      } else {
        EXPECT_EQ(entry, column < 8 ? -7 : -1);
      }
    }
    EXPECT_GE(Entry(view.chunk_table, kv->slot(), 0, 0), 0);
    EXPECT_EQ(Entry(view.hsa, kv->slot(), 0), 3);
  }
  // A head that grows again, into pages that were somebody's meanwhile.
  auto other = *cache_->NewSequence(kDense, Rows(100));
  for (int32_t position = 1000; position < 1010; ++position) {
    ASSERT_TRUE(kv->ReserveAppend(*ops_).ok());
    kv->Appended(position);
  }
  EXPECT_EQ(free - cache_->pages().free_pages(), 2 * kHeads + 2 * kHeads);
  for (int layer = 0; layer < 3; ++layer) {
    const PagedKv view = cache_->View(LayerId(layer), TensorView());
    EXPECT_GE(Entry(view.page_table, kv->slot(), 1, 1), 0);
    EXPECT_EQ(Entry(view.page_table, kv->slot(), 1, 2), -7);
  }
  other.reset();
  kv.reset();
  ExpectNothingTaken();
}

TEST_F(DecodeCacheTest, ReserveAppendUploadsOneColumnWhenAPageIsAdded) {
  Make(SomeOptions());
  auto kv = *cache_->NewSequence({1, 4, 8}, Rows(126));
  for (int i = 0; i < kHeads; ++i) ASSERT_TRUE(Write(*kv, 0, i / 2, i % 2, 0, 126).ok());
  kv->FinishWrites(0, *ops_);
  const PagedKv view = cache_->View(LayerId(2), TensorView());
  const auto Columns = [&](TensorView table) {
    return std::vector<int32_t>{Entry(table, kv->slot(), 1, 0), Entry(table, kv->slot(), 1, 1),
                                Entry(table, kv->slot(), 1, 2), Entry(table, kv->slot(), 1, 3)};
  };
  // Marks that an upload of their column would overwrite.
  for (int column = 0; column < 4; ++column) {
    Entry(view.page_table, kv->slot(), 1, column) = -7;
    Entry(view.chunk_table, kv->slot(), 1, column) = -7;
  }
  for (int32_t position = 1000; position < 1002; ++position) {
    ASSERT_TRUE(kv->ReserveAppend(*ops_).ok());
    kv->Appended(position);
  }
  EXPECT_THAT(Columns(view.page_table), ElementsAre(-7, -7, -7, -7));
  EXPECT_THAT(Columns(view.chunk_table), ElementsAre(-7, -7, -7, -7));
  ASSERT_TRUE(kv->ReserveAppend(*ops_).ok());
  EXPECT_THAT(Columns(view.page_table), ElementsAre(-7, -7, Ge(0), -7));
  EXPECT_THAT(Columns(view.chunk_table), ElementsAre(-7, Ge(0), -7, -7));
}

TEST_F(DecodeCacheTest, FinishWritesAgainRestoresTheLengths) {
  Make(SomeOptions());
  auto kv = *cache_->NewSequence(kDense, Rows(10));
  for (int i = 0; i < kHeads; ++i) ASSERT_TRUE(Write(*kv, 0, i / 2, i % 2, 0, 10).ok());
  kv->FinishWrites(1, *ops_);
  std::vector<float> row(2 * kDim);
  int32_t slot = kv->slot();
  const TensorView one = TensorView::Contiguous(row.data(), DType::kF32, {1, 2, kDim});
  const PagedKv view = cache_->View(LayerId(0), TensorView::Contiguous(&slot, DType::kI32, {1}));
  ops_->AppendKv(one, one, view);
  EXPECT_EQ(Entry(view.kept_len, slot, 0), 11);
  kv->FinishWrites(1, *ops_);  // the other layers failed
  ExpectContents(*kv, 0);
}

// Sums are of the rows that count: also after a step that added one in some layers and failed.
TEST_F(DecodeCacheTest, FinishWritesAddsUpTheValuesWhereTheirSumsAreKept) {
  Make(SomeOptions());
  auto kv = *cache_->NewSequence({1, 4, 8, 1}, Rows(20));
  for (int i = 0; i < kHeads; ++i) ASSERT_TRUE(Write(*kv, 0, i / 2, i % 2, 0, 10 + i).ok());
  int32_t slot = kv->slot();
  const auto expect_sums = [&](float added) {
    for (int i = 0; i < kHeads; ++i) {
      const PagedKv view = cache_->View(LayerId(i / 2), TensorView());
      float sum = i < 2 ? added : 0;
      for (int row = 0; row < 10 + i; ++row) sum -= Mark(0, i / 2, i % 2, row);
      for (int d = 0; d < kDim; ++d)
        ASSERT_EQ(view.value_sums
                      .as<float>()[slot * view.value_sums.stride[0] + i % 2 * view.value_sums.stride[1] + d],
                  sum)
            << i;
    }
  };
  kv->FinishWrites(1, *ops_);
  expect_sums(0);
  std::vector<float> row(2 * kDim, 7);
  const TensorView one = TensorView::Contiguous(row.data(), DType::kF32, {1, 2, kDim});
  ops_->AppendKv(one, one, cache_->View(LayerId(0), TensorView::Contiguous(&slot, DType::kI32, {1})));
  expect_sums(7);
  kv->FinishWrites(1, *ops_);  // the other layers failed
  expect_sums(0);
}

TEST_F(DecodeCacheTest, ReserveAppendIsAllOrNothingAndStopsAtTheContext) {
  DecodeCacheOptions options = SomeOptions();
  options.max_rows = 64;
  Make(options);
  auto kv = *cache_->NewSequence(kDense, Rows(64));
  for (int i = 0; i < kHeads; ++i) ASSERT_TRUE(Write(*kv, 0, i / 2, i % 2, 0, 64).ok());
  kv->FinishWrites(0, *ops_);
  EXPECT_EQ(kv->ReserveAppend(*ops_).code(), absl::StatusCode::kOutOfRange);

  options = SomeOptions();
  kv.reset();
  Make(options);
  kv = *cache_->NewSequence(kDense, Rows(64));
  for (int i = 0; i < kHeads; ++i) ASSERT_TRUE(Write(*kv, 0, i / 2, i % 2, 0, 64).ok());
  kv->FinishWrites(0, *ops_);
  std::vector<std::unique_ptr<SequenceKv>> others;  // leave 5 pages: one short
  std::vector<int> rest = Rows(0);
  int excess = cache_->pages().free_pages() - 5;
  for (int i = 0; i < kHeads; ++i) {
    rest[i] = std::min(excess, 15) * 64;
    excess -= std::min(excess, 15);
  }
  ASSERT_EQ(excess, 0);
  others.push_back(*cache_->NewSequence(kDense, rest));
  ASSERT_EQ(cache_->pages().free_pages(), 5);
  EXPECT_THAT(kv->ReserveAppend(*ops_).message(), HasSubstr("kv pages: need 6, free 5"));
  EXPECT_EQ(cache_->pages().free_pages(), 5);
  EXPECT_EQ(Entry(cache_->View(LayerId(0), TensorView()).page_table, kv->slot(), 0, 1), -1);
  others.clear();
  EXPECT_TRUE(kv->ReserveAppend(*ops_).ok());
}

TEST_F(DecodeCacheTest, WindowsBeginAtTheFirstPositionInReach) {
  DecodeCacheOptions options = SomeOptions();
  options.sliding_windows = {0, 10, 40};
  Make(options);
  auto kv = *cache_->NewSequence(kDense, Rows(60));
  for (int i = 0; i < kHeads; ++i) {
    ASSERT_TRUE(Write(*kv, 0, i / 2, i % 2, 0, i % 2 == 0 ? 50 : 20).ok());  // positions 0, 2, .. 98 or 38
  }
  kv->FinishWrites(0, *ops_);
  const auto Begin = [&](int layer, int head) {
    return Entry(cache_->View(LayerId(layer), TensorView()).row_begin, kv->slot(), head);
  };
  const auto Begins = [&] {
    std::vector<int> all;
    for (int i = 0; i < kHeads; ++i) all.push_back(Begin(i / 2, i % 2));
    return all;
  };
  kv->AdvanceWindows(39, *ops_);
  EXPECT_THAT(Begins(), ElementsAre(0, 0, 15, 15, 0, 0));  // 39 - 10: 30 is the first above
  kv->AdvanceWindows(100, *ops_);
  EXPECT_THAT(Begins(), ElementsAre(0, 0, 46, 20, 31, 20));  // all of head 1 is out of reach
  ASSERT_TRUE(kv->ReserveAppend(*ops_).ok());
  kv->Appended(100);
  Entry(cache_->View(LayerId(0), TensorView()).row_begin, kv->slot(), 0) = -7;
  kv->AdvanceWindows(101, *ops_);
  EXPECT_THAT(Begins(), ElementsAre(-7, 0, 46, 20, 31, 20));  // nothing moved: no upload
  kv->AdvanceWindows(111, *ops_);
  EXPECT_THAT(Begins(), ElementsAre(0, 0, 51, 21, 36, 20));
}

TEST_F(DecodeCacheTest, RandomLivesKeepContentsAndGiveEverythingBack) {
  DecodeCacheOptions options = SomeOptions();
  options.sliding_windows = {0, 50, 0};
  Make(options);
  std::mt19937 random(7);
  struct Life {
    std::unique_ptr<SequenceKv> kv;
    int id;
    std::vector<int> target;
    bool finished = false;
    int32_t position = 0;
  };
  std::vector<Life> lives;
  int refused = 0, appended = 0;
  for (int step = 0; step < 4000; ++step) {
    const int what = static_cast<int>(random() % 100);
    if (what < 15 || lives.empty()) {
      Life life;
      life.id = step % 500;
      for (int i = 0; i < kHeads; ++i) life.target.push_back(1 + static_cast<int>(random() % 300));
      auto kv = cache_->NewSequence({static_cast<int32_t>(random() % 4), 2, 8}, life.target);
      if (!kv.ok()) {
        ASSERT_EQ(kv.status().code(), absl::StatusCode::kResourceExhausted);
        ++refused;
        continue;
      }
      life.kv = *std::move(kv);
      lives.push_back(std::move(life));
      continue;
    }
    Life& life = lives[random() % lives.size()];
    if (what < 22) {
      std::swap(life, lives.back());
      lives.pop_back();
    } else if (!life.finished) {
      bool complete = true;
      for (int i = 0; i < kHeads; ++i) {
        const int have = life.kv->kept(LayerId(i / 2), i % 2);
        const int n = std::min<int>(life.target[i] - have, random() % 200);
        ASSERT_TRUE(Write(*life.kv, life.id, i / 2, i % 2, have, n).ok());
        complete &= have + n == life.target[i];
      }
      if (!complete) continue;
      life.kv->FinishWrites(static_cast<int>(random() % 40), *ops_);
      life.finished = true;
      life.position = 1000;
    } else {
      for (int token = 0; token < 20; ++token) {
        const absl::Status room = life.kv->ReserveAppend(*ops_);
        if (!room.ok()) {
          if (life.kv->kept(LayerId(0), 0) <
              700) {  // else it may be full: the heads differ by up to 300 rows
            ASSERT_EQ(room.code(), absl::StatusCode::kResourceExhausted);
          }
          ++refused;
          break;
        }
        life.kv->AdvanceWindows(life.position, *ops_);
        int32_t slot = life.kv->slot();
        for (int layer = 0; layer < 3; ++layer) {
          std::vector<float> k, v;
          for (int head = 0; head < 2; ++head) {
            const float mark = Mark(life.id, layer, head, life.kv->kept(LayerId(layer), head));
            k.insert(k.end(), kDim, mark);
            v.insert(v.end(), kDim, -mark);
          }
          ops_->AppendKv(TensorView::Contiguous(k.data(), DType::kF32, {1, 2, kDim}),
                         TensorView::Contiguous(v.data(), DType::kF32, {1, 2, kDim}),
                         cache_->View(LayerId(layer), TensorView::Contiguous(&slot, DType::kI32, {1})));
        }
        life.kv->Appended(life.position++);
        ++appended;
      }
    }
    if (step % 50 == 0) {
      for (const Life& check : lives) {
        if (check.finished) ExpectContents(*check.kv, check.id);
      }
    }
  }
  EXPECT_GT(refused, 50);
  EXPECT_GT(appended, 1000);
  lives.clear();
  ExpectNothingTaken();
}

TEST_F(DecodeCacheTest, ThreadsReserveWhileOthersGrowAndRelease) {
  Make(SomeOptions());
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([this, t] {
      const std::unique_ptr<Ops> ops = backend_->NewOps();
      std::mt19937 random(t);
      for (int i = 0; i < 400; ++i) {
        auto kv = cache_->NewSequence({static_cast<int32_t>(random() % 4), 2, 8},
                                      Rows(static_cast<int>(random() % 200)));
        if (!kv.ok()) continue;
        std::vector<float> row(kDim, static_cast<float>(t));
        const TensorView one = TensorView::Contiguous(row.data(), DType::kF32, {1, kDim});
        if (!(*kv)->Write(LayerId(0), 0, 0, one, one, {0}, *ops).ok()) continue;  // nothing reserved
        (*kv)->FinishWrites(0, *ops);
        for (int n = 1; n < 80 && (*kv)->ReserveAppend(*ops).ok(); ++n) (*kv)->Appended(n);
        ASSERT_EQ(*Row(cache_->View(LayerId(0), TensorView()), (*kv)->slot(), 0, 0), static_cast<float>(t));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  ExpectNothingTaken();
}

}  // namespace
}  // namespace sluice
