// From names of devices to backends.
#include "kernels/make_backend.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/cuda/cuda_backend.h"

namespace sluice {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

TEST(MakeBackendTest, CpuIsAlwaysThere) {
  EXPECT_THAT((*MakeBackend("cpu", {}))->description(), StartsWith("cpu, "));
}

TEST(MakeBackendTest, AutoIsTheGpuWhereThereIsOne) {
  EXPECT_THAT((*MakeBackend("auto", {}))->description(),
              StartsWith(CountCudaDevices().ok() ? "cuda:0, " : "cpu, "));
}

TEST(MakeBackendTest, UnknownNamesAreRefused) {
  for (const char* name : {"", "gpu", "cuda:", "cuda:x", "cuda0"}) {
    absl::Status status = MakeBackend(name, {}).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << name;
    EXPECT_THAT(std::string(status.message()), HasSubstr("cuda:<index>"));
  }
}

TEST(MakeBackendTest, AMissingGpuIsSaid) {
  EXPECT_EQ(MakeBackend("cuda:1000", {}).status().code(), absl::StatusCode::kFailedPrecondition);
  if (!CountCudaDevices().ok()) {
    EXPECT_EQ(MakeBackend("cuda", {}).status().code(), absl::StatusCode::kFailedPrecondition);
  }
}

}  // namespace
}  // namespace sluice
