// Truncated and altered files: opening and reading them ends in a Status or in numbers, never in a crash.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "common/weights/gguf.h"
#include "common/weights/safetensors.h"
#include "tests/support/temp_dir.h"

namespace sluice {
namespace {

std::string ReadFile(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  EXPECT_TRUE(in.good()) << path;
  return std::string(std::istreambuf_iterator<char>(in), {});
}

void ReadEverything(const WeightFile& file) {
  for (const auto& [name, tensor] : file.tensors()) {
    // Only the size of a row may be false by now, and it is bounded by the file.
    std::vector<float> row(tensor.row_elements());
    EXPECT_TRUE(file.ReadRows(name, tensor.rows() - 1, tensor.rows(), absl::MakeSpan(row)).ok());
  }
  file.Digest();
}

bool ReadGguf(const std::string& path) {
  auto file = GgufFile::Open(path);
  if (!file.ok()) return false;
  ReadEverything(**file);
  for (const auto& [key, value] : (*file)->metadata()) {
    (void)(*file)->GetInts(key);
    (void)(*file)->GetFloats(key);
    (void)(*file)->GetStrings(key);
  }
  return true;
}

bool ReadSafetensors(const std::string& path) {
  auto file = SafetensorsFile::Open(path);
  if (!file.ok()) return false;
  ReadEverything(**file);
  return true;
}

using Reader = bool (*)(const std::string& path);

// `padding`: bytes at the end that belong to no tensor.
void Truncate(const std::string& bytes, size_t header, size_t padding, Reader read) {
  TempDir dir;
  std::string path = dir.Write("cut", bytes);
  EXPECT_TRUE(read(path));
  for (size_t size = bytes.size() - padding - 1; size > 0;
       size -= std::min<size_t>(size, size < header ? 7 : 997)) {
    std::filesystem::resize_file(path, size);
    EXPECT_FALSE(read(path)) << size;
  }
}

// Changes one to three header bytes in place, reads, and puts them back.
void Alter(const std::string& bytes, size_t header, Reader read) {
  TempDir dir;
  std::string path = dir.Write("altered", bytes);
  std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
  auto put = [&](size_t at, char value) {
    file.seekp(static_cast<std::streamoff>(at));
    file.put(value);
  };
  std::mt19937 random(1);
  int refused = 0;
  for (int round = 0; round < 4000; ++round) {
    std::vector<size_t> places(1 + round % 3);
    for (size_t& at : places) {
      at = random() % header;
      put(at, static_cast<char>(round % 2 == 0 ? random() : (random() % 2 == 0 ? 0xff : 0)));
    }
    file.flush();
    if (!read(path)) ++refused;
    for (size_t at : places) put(at, bytes[at]);
  }
  file.flush();
  EXPECT_GT(refused, 1000);
  EXPECT_TRUE(read(path));
}

const std::string kGolden = SLUICE_SOURCE_DIR "/tests/golden/weights/";

TEST(DamagedFile, TruncatedGgufIsRefused) { Truncate(ReadFile(kGolden + "types.gguf"), 2048, 31, ReadGguf); }
TEST(DamagedFile, AlteredGgufDoesNotCrash) { Alter(ReadFile(kGolden + "types.gguf"), 1700, ReadGguf); }

TEST(DamagedFile, TruncatedSafetensorsIsRefused) {
  Truncate(ReadFile(kGolden + "types.safetensors"), 1024, 0, ReadSafetensors);
}
TEST(DamagedFile, AlteredSafetensorsDoesNotCrash) {
  Alter(ReadFile(SLUICE_SOURCE_DIR "/tests/golden/models/nemo-sharded/model-00002-of-00003.safetensors"),
        1000, ReadSafetensors);
}

}  // namespace
}  // namespace sluice
