#include "common/weights/dequantize.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "common/weights/gguf.h"
#include "common/weights/safetensors.h"

namespace sluice {
namespace {

const std::string kGolden = SLUICE_SOURCE_DIR "/tests/golden/weights/";

// Distance in representable floats.
int64_t Ulps(float a, float b) {
  auto ordered = [](float f) {
    int32_t bits;
    std::memcpy(&bits, &f, 4);
    return bits < 0 ? int64_t{INT32_MIN} - bits : int64_t{bits};
  };
  return std::abs(ordered(a) - ordered(b));
}

TEST(Dequantize, EveryTypeEqualsTheReference) {
  auto file = GgufFile::Open(kGolden + "types.gguf");
  ASSERT_TRUE(file.ok()) << file.status();
  auto wanted = SafetensorsFile::Open(kGolden + "types.safetensors");
  ASSERT_TRUE(wanted.ok()) << wanted.status();
  ASSERT_EQ((*file)->names(), (*wanted)->names());
  ASSERT_EQ((*file)->names().size(), static_cast<size_t>(kTensorTypes));
  for (const auto& [name, tensor] : (*file)->tensors()) {
    ASSERT_EQ(name, LayoutOf(tensor.type).name);
    std::vector<float> a(tensor.rows() * tensor.row_elements()), b(a.size());
    ASSERT_TRUE((*file)->ReadRows(name, 0, tensor.rows(), absl::MakeSpan(a)).ok());
    ASSERT_TRUE((*wanted)->ReadRows(name, 0, tensor.rows(), absl::MakeSpan(b)).ok());
    for (size_t i = 0; i < a.size(); ++i)
      ASSERT_EQ(Ulps(a[i], b[i]), 0) << name << " " << i << ": " << a[i] << " " << b[i];
    // A middle row alone.
    std::vector<float> row(tensor.row_elements());
    ASSERT_TRUE((*file)->ReadRows(name, 1, 2, absl::MakeSpan(row)).ok());
    for (size_t i = 0; i < row.size(); ++i) ASSERT_EQ(Ulps(row[i], b[row.size() + i]), 0) << name;
  }
}

TEST(Dequantize, HalvesOfEveryKind) {
  EXPECT_EQ(HalfToFloat(0x0000), 0.0f);
  EXPECT_TRUE(std::signbit(HalfToFloat(0x8000)));
  EXPECT_EQ(HalfToFloat(0x0001), 0x1p-24f);
  EXPECT_EQ(HalfToFloat(0x83ff), -1023 * 0x1p-24f);
  EXPECT_EQ(HalfToFloat(0x0400), 0x1p-14f);
  EXPECT_EQ(HalfToFloat(0x3c00), 1.0f);
  EXPECT_EQ(HalfToFloat(0xc500), -5.0f);
  EXPECT_EQ(HalfToFloat(0x7bff), 65504.0f);
  EXPECT_EQ(HalfToFloat(0x7c00), INFINITY);
  EXPECT_EQ(HalfToFloat(0xfc00), -INFINITY);
  EXPECT_TRUE(std::isnan(HalfToFloat(0x7e00)));
}

}  // namespace
}  // namespace sluice
