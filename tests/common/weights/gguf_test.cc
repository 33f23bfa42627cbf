#include "common/weights/gguf.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "tests/support/gguf_bytes.h"
#include "tests/support/temp_dir.h"

namespace sluice {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::unique_ptr<GgufFile> Golden() {
  auto file = GgufFile::Open(SLUICE_SOURCE_DIR "/tests/golden/weights/types.gguf");
  EXPECT_TRUE(file.ok()) << file.status();
  return *std::move(file);
}

absl::Status OpenBytes(const std::string& bytes) {
  TempDir dir;
  return GgufFile::Open(dir.Write("m.gguf", bytes)).status();
}

void ExpectRefused(const std::string& bytes, const std::string& what) {
  absl::Status status = OpenBytes(bytes);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << what;
  EXPECT_THAT(std::string(status.message()), HasSubstr("m.gguf"));
  EXPECT_THAT(std::string(status.message()), HasSubstr(what));
}

TEST(Gguf, ReadsEveryMetadataType) {
  auto file = Golden();
  EXPECT_EQ(*file->GetInt("u8"), 200);
  EXPECT_EQ(*file->GetInt("i8"), -100);
  EXPECT_EQ(*file->GetInt("u16"), 60000);
  EXPECT_EQ(*file->GetInt("i16"), -30000);
  EXPECT_EQ(*file->GetInt("u32"), 4000000000);
  EXPECT_EQ(*file->GetInt("i32"), -2000000000);
  EXPECT_EQ(*file->GetInt("i64"), -(int64_t{1} << 62));
  EXPECT_EQ(file->GetInt("u64").status().code(), absl::StatusCode::kInvalidArgument);  // beyond int64
  EXPECT_EQ(*file->GetFloat("f32"), 1.5);
  EXPECT_EQ(*file->GetFloat("f64"), 0.1);
  EXPECT_TRUE(*file->GetBool("yes"));
  EXPECT_FALSE(*file->GetBool("no"));
  EXPECT_EQ(*file->GetString("text"), "naïve");
  EXPECT_THAT(*file->GetInts("u8s"), ElementsAre(1, 255));
  EXPECT_THAT(*file->GetInts("i8s"), ElementsAre(-1, 127));
  EXPECT_THAT(*file->GetInts("u16s"), ElementsAre(1, 65535));
  EXPECT_THAT(*file->GetInts("i16s"), ElementsAre(-1, 32767));
  EXPECT_THAT(*file->GetInts("u32s"), ElementsAre(1, 4294967295));
  EXPECT_THAT(*file->GetInts("i32s"), ElementsAre(-1, 2147483647));
  EXPECT_THAT(*file->GetInts("i64s"), ElementsAre(-1, int64_t{1} << 40));
  EXPECT_THAT(*file->GetFloats("f32s"), ElementsAre(0.5f, -2.0f));
  EXPECT_THAT(*file->GetFloats("f64s"), ElementsAre(0.25f, 4.0f));
  EXPECT_THAT(*file->GetStrings("texts"), ElementsAre("a", "", "ccc"));
  EXPECT_EQ(std::get<GgufArray>(file->metadata().find("nested")->second).count, 2u);
}

TEST(Gguf, WrongKindAndMissingKeyAreNamed) {
  auto file = Golden();
  EXPECT_THAT(std::string(file->GetInt("text").status().message()),
              HasSubstr("text is not a 64-bit integer"));
  EXPECT_EQ(file->GetString("u8").status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(file->GetBool("u8").status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(file->GetFloat("u8").status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(file->GetInts("texts").status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(file->GetFloats("u8s").status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(file->GetStrings("nested").status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(file->GetInt("absent").status().code(), absl::StatusCode::kNotFound);
}

TEST(Gguf, VersionTwoIsTheSameLayout) {
  std::string bytes =
      GgufBytes().Text("general.name", "x").Tensor("t", {2}, 0, 0).Finish(std::string(8, '\0'));
  EXPECT_TRUE(OpenBytes(bytes).ok()) << OpenBytes(bytes);
  bytes[4] = 2;
  EXPECT_TRUE(OpenBytes(bytes).ok()) << OpenBytes(bytes);
  bytes[4] = 1;
  ExpectRefused(bytes, "version");
  bytes[4] = 0;
  bytes[7] = 3;
  ExpectRefused(bytes, "big-endian");
}

TEST(Gguf, DimensionsAreListedFastestFirst) {
  TempDir dir;
  auto file = GgufFile::Open(
      dir.Write("m.gguf", GgufBytes().Tensor("t", {2, 3}, 0, 0).Finish(std::string(24, '\0'))));
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_THAT((*file)->Find("t")->shape, ElementsAre(3, 2));
  EXPECT_EQ((*file)->Find("t")->rows(), 3);
}

TEST(Gguf, ObeysTheAlignmentKey) {
  TempDir dir;
  std::string data = std::string(64, '\0') + std::string("\0\0\x80\x3f", 4);
  auto file = GgufFile::Open(
      dir.Write("m.gguf", GgufBytes(64).U32("general.alignment", 64).Tensor("t", {1}, 0, 64).Finish(data)));
  ASSERT_TRUE(file.ok()) << file.status();
  float value = 0;
  ASSERT_TRUE((*file)->ReadRows("t", 0, 1, absl::MakeSpan(&value, 1)).ok());
  EXPECT_EQ(value, 1.0f);
  ExpectRefused(GgufBytes().U32("general.alignment", 0).Finish(""), "general.alignment");
  ExpectRefused(GgufBytes().U32("general.alignment", 48).Finish(""), "general.alignment");
  ExpectRefused(GgufBytes().Text("general.alignment", "32").Finish(""), "general.alignment");
}

TEST(Gguf, RefusesFalseClaims) {
  std::string eight(8, '\0');
  ExpectRefused("", "magic");
  ExpectRefused("GGML", "not a GGUF file");
  ExpectRefused(GgufBytes().Counts(uint64_t{1} << 60, 0).Finish(""), "tensor 0");
  ExpectRefused(GgufBytes().Counts(0, uint64_t{1} << 60).Finish(""), "metadata entry 0");
  ExpectRefused(GgufBytes().Text("k", "v").Text("k", "w").Finish(""), "k: appears twice");
  ExpectRefused(GgufBytes().RawValue("k", 77, "").Finish(""), "k: unknown value type 77");
  ExpectRefused(GgufBytes().RawValue("k", 7, "\x02").Finish(""), "not a boolean");
  ExpectRefused(GgufBytes().RawValue("k", 8, std::string(8, '\xff')).Finish(""), "k: runs past the end");
  ExpectRefused(GgufBytes().Array("k", 4, uint64_t{1} << 62, "").Finish(""),
                "k: 4611686018427387904 elements");
  ExpectRefused(GgufBytes().Array("k", 8, uint64_t{1} << 62, "").Finish(""), "k: runs past the end");
  ExpectRefused(GgufBytes().Array("k", 99, 0, "").Finish(""), "unknown element type 99");
  std::string deep;  // each level: element type array, count 1
  for (int i = 0; i < 6; ++i) deep += std::string("\x09\0\0\0\x01\0\0\0\0\0\0\0", 12);
  ExpectRefused(GgufBytes().RawValue("k", 9, deep).Finish(""), "nested deeper");

  ExpectRefused(GgufBytes().Tensor("t", {2}, 0, 0).Tensor("t", {2}, 0, 32).Finish(std::string(40, '\0')),
                "tensor t: appears twice");
  ExpectRefused(GgufBytes().Tensor("t", {1, 1, 1, 1, 1}, 0, 0).Finish(eight), "5 dimensions");
  ExpectRefused(GgufBytes().Tensor("t", {uint64_t{1} << 63}, 0, 0).Finish(eight), "dimension 0");
  ExpectRefused(GgufBytes().Tensor("t", {uint64_t{1} << 40, uint64_t{1} << 40}, 0, 0).Finish(eight),
                "impossible shape");
  ExpectRefused(GgufBytes().Tensor("t", {0}, 0, 0).Finish(eight), "impossible shape");
  ExpectRefused(GgufBytes().Tensor("t", {2}, 16, 0).Finish(eight), "type 16 is not supported");
  ExpectRefused(GgufBytes().Tensor("t", {48}, 8, 0).Finish(std::string(64, '\0')), "Q8_0 blocks of 32");
  ExpectRefused(GgufBytes().Tensor("t", {2}, 0, 4).Finish(eight + eight), "no multiple of 32");
  ExpectRefused(GgufBytes().Tensor("t", {4}, 0, 0).Finish(eight), "cut short");
  ExpectRefused(GgufBytes().Tensor("t", {2}, 0, ~uint64_t{31}).Finish(eight), "cut short");
  ExpectRefused(GgufBytes().Tensor("t", {16}, 0, 0).Tensor("u", {2}, 0, 32).Finish(std::string(64, '\0')),
                "tensor u: overlaps");
}

}  // namespace
}  // namespace sluice
