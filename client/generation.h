// Role: one streamed answer: text to stdout as it comes, progress to stderr while the prompt is read, Ctrl-C
// cancels it. Threads: one caller.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/connection.h"
#include "client/console.h"
#include "sluice/v1/inference.grpc.pb.h"

namespace sluice {

struct Generation {
  std::string answer;
  std::vector<std::string> others;  // of choices 1, 2, ...
  v1::Done done;
};

using OpenStream =
    std::function<std::unique_ptr<grpc::ClientReader<v1::ChatEvent>>(grpc::ClientContext* context)>;

// "reading the prompt", "waiting for a worker", ... with the share that is done.
struct Stage {
  std::string label;
  double fraction = 0;
};
Stage DescribeProgress(const v1::Progress& progress);

// echo: write the answer to console.out as it comes, with a line feed at its end; others are only collected.
absl::StatusOr<Generation> Generate(const Connection& connection, const Console& console, bool echo,
                                    const OpenStream& open);

}  // namespace sluice
