#include "common/weights/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "tests/support/temp_dir.h"

namespace sluice {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string Safetensors(const std::string& header, const std::string& data) {
  uint64_t size = header.size();
  std::string out(reinterpret_cast<const char*>(&size), sizeof(size));
  return out + header + data;
}

std::string Floats(std::vector<float> values) {
  return std::string(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float));
}

// Opening must fail with a message that names the file and contains `what`.
void ExpectRefused(const std::string& bytes, const std::string& what) {
  TempDir dir;
  std::string path = dir.Write("m.safetensors", bytes);
  auto file = SafetensorsFile::Open(path);
  ASSERT_FALSE(file.ok()) << what;
  EXPECT_EQ(file.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(file.status().message(), HasSubstr("m.safetensors"));
  EXPECT_THAT(file.status().message(), HasSubstr(what));
}

TEST(Safetensors, ReadsTheBundledModel) {
  auto file = SafetensorsFile::Open(SLUICE_SOURCE_DIR "/models/needle-14m/model.safetensors");
  ASSERT_TRUE(file.ok()) << file.status();
  auto embedding = (*file)->Find("model.embed_tokens.weight");
  ASSERT_TRUE(embedding.ok()) << embedding.status();
  EXPECT_THAT(embedding->shape, ElementsAre(4096, 384));
  EXPECT_EQ(embedding->type, TensorType::kBF16);
  std::vector<float> rows(2 * 384);
  ASSERT_TRUE((*file)->ReadRows("model.embed_tokens.weight", 100, 102, absl::MakeSpan(rows)).ok());
  uint16_t stored;
  std::memcpy(&stored, embedding->bytes.data() + 101 * 384 * 2, 2);
  uint32_t bits;
  std::memcpy(&bits, &rows[384], 4);
  EXPECT_EQ(bits, static_cast<uint32_t>(stored) << 16);
  EXPECT_EQ((*file)->Find("lm_head.weight").status().code(), absl::StatusCode::kNotFound);
}

TEST(Safetensors, ReadsEveryTypeUnaligned) {
  // One half at offset 0 puts the floats at an odd multiple of two.
  std::string data = std::string("\x00\x3c", 2) + Floats({1.5f, -2.0f}) + std::string("\xc0\x3f", 2);
  std::string header =
      R"({"__metadata__":{"format":"pt"},"h":{"dtype":"F16","shape":[],"data_offsets":[0,2]},)"
      R"("f":{"dtype":"F32","shape":[2,1],"data_offsets":[2,10]},"b":{"dtype":"BF16","shape":[1],"data_offsets":[10,12]}})";
  TempDir dir;
  auto file = SafetensorsFile::Open(dir.Write("m.safetensors", Safetensors(header, data)));
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_THAT((*file)->names(), ElementsAre("b", "f", "h"));
  float value = 0;
  ASSERT_TRUE((*file)->ReadRows("h", 0, 1, absl::MakeSpan(&value, 1)).ok());
  EXPECT_EQ(value, 1.0f);
  ASSERT_TRUE((*file)->ReadRows("f", 1, 2, absl::MakeSpan(&value, 1)).ok());
  EXPECT_EQ(value, -2.0f);
  ASSERT_TRUE((*file)->ReadRows("b", 0, 1, absl::MakeSpan(&value, 1)).ok());
  EXPECT_EQ(value, 1.5f);
  EXPECT_FALSE((*file)->ReadRows("f", 1, 3, absl::MakeSpan(&value, 1)).ok());
  EXPECT_FALSE((*file)->ReadRows("f", 0, 2, absl::MakeSpan(&value, 1)).ok());
  EXPECT_FALSE((*file)->ReadRows("f", -1, 0, absl::MakeSpan(&value, 1)).ok());
}

TEST(Safetensors, RefusesDamagedHeaders) {
  std::string four = Floats({1});
  ExpectRefused("", "too short");
  ExpectRefused("1234567", "too short");
  ExpectRefused(std::string("\xff\xff\xff\xff\xff\xff\xff\x7f{}", 10), "header size");
  ExpectRefused(Safetensors("{\"a\":", ""), "JSON");
  ExpectRefused(Safetensors("[]", ""), "JSON object");
  ExpectRefused(Safetensors(R"({"a":1})", ""), "tensor a");
  ExpectRefused(Safetensors(R"({"a":{"dtype":"F32","shape":[[[1]]],"data_offsets":[0,4]}})", four), "nested");
  ExpectRefused(Safetensors(R"({"a":{"shape":[1],"data_offsets":[0,4]}})", four), "dtype");
  ExpectRefused(Safetensors(R"({"a":{"dtype":"I64","shape":[1],"data_offsets":[0,8]}})", four + four), "I64");
  ExpectRefused(Safetensors(R"({"a":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}})", four), "shape");
  ExpectRefused(Safetensors(R"({"a":{"dtype":"F32","shape":[0],"data_offsets":[0,0]}})", ""),
                "impossible shape");
  ExpectRefused(Safetensors(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,8]}})", four), "cut short");
  ExpectRefused(Safetensors(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[4,0]}})", four),
                "data_offsets");
  ExpectRefused(Safetensors(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}})", four), "needs 8");
  ExpectRefused(
      Safetensors(R"({"a":{"dtype":"F32","shape":[4611686018427387904,4],"data_offsets":[0,4]}})", four),
      "impossible shape");
  ExpectRefused(
      Safetensors(R"({"a":{"dtype":"F32","shape":[4611686018427387904],"data_offsets":[0,4]}})", four),
      "impossible shape");
  std::string a = R"("a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]})";
  ExpectRefused(Safetensors("{" + a + "," + a + "}", four), "twice");
  ExpectRefused(Safetensors("{" + a + R"(,"b":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})", four),
                "overlap");
  ExpectRefused(
      Safetensors("{" + a + R"(,"b":{"dtype":"F32","shape":[1],"data_offsets":[8,12]}})", four + four + four),
      "gap");
  ExpectRefused(Safetensors("{" + a + "}", four + four), "after the last tensor");
}

TEST(Safetensors, ReadsShardsAndComparesThemWithTheIndex) {
  std::string a = Safetensors(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})", Floats({1}));
  std::string b = Safetensors(R"({"b":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})", Floats({2}));
  auto open = [&](const std::string& map) {
    TempDir dir;
    dir.Write("1.safetensors", a);
    dir.Write("2.safetensors", b);
    return SafetensorsFile::OpenSharded(dir.Write("i.json", R"({"weight_map":)" + map + "}"));
  };
  auto file = open(R"({"a":"1.safetensors","b":"2.safetensors"})");
  ASSERT_TRUE(file.ok()) << file.status();
  float value = 0;
  ASSERT_TRUE((*file)->ReadRows("b", 0, 1, absl::MakeSpan(&value, 1)).ok());
  EXPECT_EQ(value, 2.0f);

  EXPECT_THAT(open("3").status().message(), HasSubstr("weight_map"));
  EXPECT_THAT(open(R"({"a":5})").status().message(), HasSubstr("file is no string"));
  EXPECT_THAT(open(R"({"a":"../1.safetensors"})").status().message(), HasSubstr("no file name"));
  EXPECT_THAT(open(R"({"a":"2.safetensors"})").status().message(),
              HasSubstr("tensor a is not in 2.safetensors"));
  EXPECT_THAT(open(R"({"b":"2.safetensors","c":"2.safetensors"})").status().message(), HasSubstr("tensor c"));
  EXPECT_EQ(open(R"({"a":"9.safetensors"})").status().code(), absl::StatusCode::kNotFound);
}

TEST(Safetensors, RefusesAShardWithUnlistedTensors) {
  std::string two = Safetensors(
      R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"b":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})",
      Floats({1, 2}));
  TempDir dir;
  dir.Write("1.safetensors", two);
  auto file = SafetensorsFile::OpenSharded(dir.Write("i.json", R"({"weight_map":{"a":"1.safetensors"}})"));
  EXPECT_THAT(file.status().message(), HasSubstr("tensor b of 1.safetensors is not listed"));
}

TEST(Safetensors, DigestTellsWeightsAndNamesApart) {
  auto digest = [](const std::string& name, float value) {
    TempDir dir;
    std::string header = R"({")" + name + R"(":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})";
    auto file = SafetensorsFile::Open(dir.Write("m.safetensors", Safetensors(header, Floats({value}))));
    return file.ok() ? (*file)->Digest() : 0;
  };
  EXPECT_EQ(digest("a", 1), digest("a", 1));
  EXPECT_NE(digest("a", 1), digest("a", 2));
  EXPECT_NE(digest("a", 1), digest("b", 1));
  EXPECT_NE(digest("a", 1), 0u);
}

}  // namespace
}  // namespace sluice
