// Slabs, checksums, ledger, stored results: the parts of the hand-off that need no machine.
#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "common/handoff/compatibility.h"
#include "common/handoff/crc32c.h"
#include "common/handoff/manifest.h"
#include "common/handoff/recent_map.h"
#include "common/handoff/slab.h"
#include "common/handoff/slot_ledger.h"

namespace sluice {
namespace {

constexpr KvShape kShape = {2, 8, 4, 16, DType::kBF16};

// RFC 3720, appendix B.4.
TEST(Crc32c, KnownVectors) {
  char zeros[32] = {}, ones[32], up[32];
  std::memset(ones, 0xff, 32);
  for (int i = 0; i < 32; ++i) up[i] = static_cast<char>(i);
  for (auto crc : {+[](const void*p, size_t n) { return Crc32c(p, n); },
                   +[](const void*p, size_t n) { return internal::Crc32cTable(p, n, 0); }}) {
    EXPECT_EQ(crc(zeros, 32), 0x8a9136aau);
    EXPECT_EQ(crc(ones, 32), 0x62a8ab43u);
    EXPECT_EQ(crc(up, 32), 0x46dd794eu);
    EXPECT_EQ(crc("123456789", 9), 0xe3069283u);
  }
}

TEST(Crc32c, BothPathsAgreeAndExtend) {
  std::mt19937 random(1);
  std::string data(1000, 0);
  for (char& c : data) c = static_cast<char>(random());
  for (size_t n = 0; n < 80; ++n)
    for (size_t at = 0; at < 9; ++at)
      ASSERT_EQ(Crc32c(data.data() + at, n), internal::Crc32cTable(data.data() + at, n, 0));
  EXPECT_EQ(Crc32c(data.data() + 333, 667, Crc32c(data.data(), 333)), Crc32c(data.data(), 1000));
}

TEST(Slab, CutCoversEveryRowOnceInOrderAndFits) {
  std::mt19937 random(2);
  for (int round = 0; round < 500; ++round) {
    std::vector<int> kept(kShape.n_kv_heads);
    for (int& n : kept) n = random() % 3 == 0 ? 0 : static_cast<int>(random() % 200);
    size_t slot_bytes = 68 + random() % 4000;
    auto slabs = CutLayer(LayerId(1), kept, kShape, slot_bytes);
    ASSERT_TRUE(slabs.ok());
    std::vector<int> next(kept.size(), 0);
    std::vector<LayerProgress> layers(2, {kept, std::vector<int>(4, 0), std::vector<int32_t>(4, -1)});
    for (const SlabHeader& slab : *slabs) {
      ASSERT_TRUE(CheckHeader(slab, kShape, slot_bytes).ok());
      ASSERT_TRUE(CheckFollows(slab, layers[1]).ok());
      for (size_t i = 0; i < slab.rows.size(); ++i) layers[1].kept[slab.head_begin + i] += slab.rows[i];
    }
    EXPECT_EQ(layers[1].kept, kept);
    int total = 0;
    for (int n : kept) total += n;
    int room = static_cast<int>(slot_bytes / 68);
    EXPECT_EQ(static_cast<int>(slabs->size()), (total + room - 1) / room);  // no slab more than needed
  }
}

TEST(Slab, SlotTooSmallForARowIsRefused) {
  EXPECT_EQ(CutLayer(LayerId(0), {1, 1, 1, 1}, kShape, 67).status().code(),
            absl::StatusCode::kInvalidArgument);
}

// A layer that can take slabs: ceilings of 10 rows, nothing received.
std::vector<LayerProgress> Fresh() {
  return std::vector<LayerProgress>(
      2, {std::vector<int>(4, 10), std::vector<int>(4, 0), std::vector<int32_t>(4, -1)});
}

TEST(Slab, HostileHeadersAreRefused) {
  auto ok = [](const SlabHeader& header) {
    return CheckHeader(header, kShape, 4096).ok() && CheckFollows(header, Fresh()[0]).ok();
  };
  EXPECT_TRUE(ok({LayerId(0), 0, {0, 0}, {5, 6}}));
  EXPECT_FALSE(ok({LayerId(2), 0, {0}, {5}}));
  EXPECT_FALSE(ok({LayerId(-1), 0, {0}, {5}}));
  EXPECT_FALSE(ok({LayerId(0), -1, {0}, {5}}));
  EXPECT_FALSE(ok({LayerId(0), 4, {0}, {5}}));
  EXPECT_FALSE(ok({LayerId(0), 2147483647, {0}, {5}}));
  EXPECT_FALSE(ok({LayerId(0), 3, {0, 0}, {5, 5}}));
  EXPECT_FALSE(ok({LayerId(0), 0, {0}, {5, 5}}));
  EXPECT_FALSE(ok({LayerId(0), 0, {}, {}}));
  EXPECT_FALSE(ok({LayerId(0), 0, {0}, {0}}));
  EXPECT_FALSE(ok({LayerId(0), 0, {0}, {-5}}));
  EXPECT_FALSE(ok({LayerId(0), 0, {0, 0}, {2147483647, 2147483647}}));
  EXPECT_FALSE(ok({LayerId(0), 0, {0}, {11}}));                             // above the ceiling
  EXPECT_FALSE(ok({LayerId(0), 0, {1}, {5}}));                              // a gap
  EXPECT_FALSE(CheckHeader({LayerId(0), 0, {0}, {10}}, kShape, 600).ok());  // 680 bytes in 600
}

TEST(Slab, PositionsMustAscendBelowTheLimit) {
  SlabHeader header{LayerId(0), 1, {0, 0}, {3, 2}};
  ASSERT_EQ(LayoutOf(header, kShape).bytes, 5u * (2 * 32 + 4));
  auto check = [&](std::vector<int32_t> positions, LayerProgress* progress) {
    return CheckAndAdvance(header, positions, LogicalLen(100), progress).ok();
  };
  LayerProgress progress = Fresh()[0];
  EXPECT_FALSE(check({3, 3, 4, 0, 1}, &progress));
  EXPECT_FALSE(check({3, 2, 4, 0, 1}, &progress));
  EXPECT_FALSE(check({1, 2, 3, 5, 100}, &progress));
  EXPECT_FALSE(check({-1, 2, 3, 5, 6}, &progress));
  EXPECT_EQ(progress.kept, Fresh()[0].kept);        // unchanged by errors
  EXPECT_TRUE(check({1, 2, 3, 0, 99}, &progress));  // each head counts for itself
  EXPECT_EQ(progress.kept, (std::vector<int>{0, 3, 2, 0}));
  EXPECT_FALSE(check({3, 4, 5, 100, 101}, &progress));  // goes on after the rows before
}

TEST(Manifest, CoversEveryPart) {
  SlabHeader header{LayerId(1), 0, {0, 0}, {5, 6}};
  Seal seal{{{"id", 1}, "p", "d"}, 1, LogicalLen(50), 11, 0, 7, {1, 2}};
  auto digest = [&](const SlabHeader& h, uint64_t checksum, const Seal& s) {
    Manifest manifest;
    manifest.Add(h, checksum);
    return manifest.Digest(s);
  };
  uint64_t base = digest(header, 9, seal);
  EXPECT_EQ(base, digest(header, 9, seal));
  EXPECT_NE(base, digest(header, 10, seal));
  EXPECT_NE(base, digest(header, 9 + (uint64_t{1} << 40), seal));
  for (int part = 0; part < 8; ++part) {
    SlabHeader h = header;
    Seal s = seal;
    if (part == 0) h.layer = LayerId(0);
    if (part == 1) h.rows = {6, 5};
    if (part == 2) s.ids.key.id = "ie";
    if (part == 3) s.ids.key.attempt = 2;
    if (part == 4) s.logical_len = LogicalLen(51);
    if (part == 5) s.first_token = 8;
    if (part == 6) s.distinct_prompt_ids = {1, 3};
    if (part == 7) h.head_begin = 1;
    EXPECT_NE(base, digest(h, 9, s)) << part;
  }
}

TEST(Compatibility, NamesTheFirstDifference) {
  Compatibility ours{"w", "t", "r", "bf16", 64, 4, 2, 16};
  EXPECT_FALSE(FirstMismatch(ours, ours).has_value());
  Compatibility theirs = ours;
  theirs.n_layers = 5;
  theirs.rope_hash = "r2";
  auto mismatch = FirstMismatch(ours, theirs);
  ASSERT_TRUE(mismatch.has_value());
  EXPECT_EQ(mismatch->field, "rope_hash");
  EXPECT_EQ(mismatch->ours, "r");
  EXPECT_EQ(mismatch->theirs, "r2");
  theirs.rope_hash = "r";
  EXPECT_EQ(FirstMismatch(ours, theirs)->field, "n_layers");
}

TEST(SlotLedger, CountsStatesAndAges) {
  SlotLedger ledger(3);
  absl::Time now = absl::UnixEpoch();
  EXPECT_EQ(ledger.Take(), 0);
  EXPECT_EQ(ledger.Take(), 1);
  ledger.Quarantine(0, now);
  ledger.Quarantine(0, now + absl::Seconds(5));  // keeps its age
  SlotCounts counts = ledger.Counts(now + absl::Seconds(7));
  EXPECT_EQ(counts.free, 1);
  EXPECT_EQ(counts.busy, 1);
  EXPECT_EQ(counts.quarantined, 1);
  EXPECT_EQ(counts.oldest_quarantine, absl::Seconds(7));
  EXPECT_EQ(ledger.Take(), 2);
  EXPECT_EQ(ledger.Take(), std::nullopt);
  ledger.Free(0);
  EXPECT_EQ(ledger.Take(), 0);
}

TEST(RecentMap, IsBoundedInAgeAndNumber) {
  RecentMap<int> map(absl::Seconds(10), 3);
  absl::Time now = absl::UnixEpoch();
  map.Put("a", 1, now);
  map.Put("b", 2, now + absl::Seconds(1));
  map.Put("a", 3, now + absl::Seconds(5));  // younger again
  map.Expire(now + absl::Seconds(12));
  ASSERT_NE(map.Find("a"), nullptr);
  EXPECT_EQ(*map.Find("a"), 3);
  EXPECT_EQ(map.Find("b"), nullptr);
  for (int i = 0; i < 100; ++i) map.Put(std::to_string(i), i, now + absl::Seconds(13));
  EXPECT_EQ(map.size(), 3u);
  EXPECT_EQ(map.Find("a"), nullptr);
  EXPECT_EQ(*map.Find("99"), 99);
}

}  // namespace
}  // namespace sluice
