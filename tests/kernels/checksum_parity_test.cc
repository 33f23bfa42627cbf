// Parity of the checksum of slabs, and what it finds.
#include "absl/strings/str_cat.h"
#include "tests/kernels/parity.h"

namespace sluice {
namespace {

class ChecksumParity : public ParityTest {
 protected:
  uint64_t Sum(TensorView words) {
    Buffer out = *backend().Allocate(8);
    ops().Checksum(words, out.View(DType::kI32, {2}));
    uint64_t sum = 0;
    ops().CopyOut(out.View(DType::kI32, {2}), &sum);
    EXPECT_TRUE(ops().Sync().ok());
    return sum;
  }
  Tensor Words(int64_t n) {
    std::vector<int> values(n);
    for (int& value : values) value = static_cast<int>(random_());
    return Ints({n}, values);
  }
};
INSTANTIATE_TEST_SUITE_P(Backends, ChecksumParity, testing::ValuesIn(AllBackends()), CaseName);

TEST_P(ChecksumParity, KnownValues) {
  EXPECT_EQ(Sum(Ints({3}, {1, 2, 3}).device), 1u * 1 + 2u * 3 + 3u * 5);
  EXPECT_EQ(Sum(Ints({2}, {-1, -1}).device), 4u * 0xffffffffull);
  EXPECT_EQ(Sum(Ints({4}, {0, 0, 0, 0}).device), 0u);
}

TEST_P(ChecksumParity, EveryLengthAndAlignment) {
  Tensor words = Words(5000);
  for (int64_t begin : {0, 1, 2, 3, 4, 5})
    for (int64_t n : {1, 2, 3, 4, 5, 6, 7, 8, 9, 31, 255, 1024, 4097}) {
      Tensor part = words.Slice(0, begin, begin + n);
      EXPECT_EQ(Sum(part.device), reference::Checksum(part.host)) << begin << " + " << n;
    }
  Tensor large = Words(3 << 20);
  EXPECT_EQ(Sum(large.device), reference::Checksum(large.host));
  Tensor floats = Random(DType::kF32, {100});
  EXPECT_EQ(Sum(floats.device), reference::Checksum(floats.host));
}

TEST_P(ChecksumParity, FindsEveryFlippedBitAndEverySwap) {
  Tensor words = Words(300);
  auto* host = words.host.as<uint32_t>();
  const uint64_t whole = Sum(words.device);
  for (int i = 0; i < 300; i += 7) {
    host[i] ^= 1u << i % 32;
    Upload(words);
    EXPECT_NE(Sum(words.device), whole) << i;
    host[i] ^= 1u << i % 32;
    std::swap(host[i], host[(i * 31 + 5) % 300]);
    Upload(words);
    EXPECT_NE(Sum(words.device), whole) << i;
    std::swap(host[i], host[(i * 31 + 5) % 300]);
  }
  Upload(words);
  EXPECT_EQ(Sum(words.device), whole);
}

}  // namespace
}  // namespace sluice
