#include "client/generation.h"

#include <optional>

#include "absl/strings/str_cat.h"
#include "client/terminal.h"

namespace sluice {
namespace {

// A bar that flashes for a short prompt tells nothing.
constexpr absl::Duration kQuiet = absl::Milliseconds(300);

constexpr int kMaxChoices = 64;

// Null: no choice that anybody asked for.
std::string* AnswerAt(int index, Generation* generation) {
  if (index == 0) return &generation->answer;
  if (index < 0 || index >= kMaxChoices) return nullptr;
  if (generation->others.size() < static_cast<size_t>(index)) generation->others.resize(index);
  return &generation->others[index - 1];
}

}  // namespace

Stage DescribeProgress(const v1::Progress& progress) {
  Stage stage;
  if (progress.total() > 0) stage.fraction = static_cast<double>(progress.processed()) / progress.total();
  switch (progress.stage()) {
    case v1::Progress::PREFILL:
      stage.label =
          absl::StrCat("reading the prompt, layer ", progress.processed(), " of ", progress.total());
      if (progress.cached() > 0) absl::StrAppend(&stage.label, ", ", progress.cached(), " tokens known");
      break;
    case v1::Progress::TRANSFER:
      stage.label = "handing over the KV";
      break;
    case v1::Progress::DECODE:
      stage.label = "answering";
      break;
    default:
      stage.label = "waiting for a worker";
  }
  return stage;
}

absl::StatusOr<Generation> Generate(const Connection& connection, const Console& console, bool echo,
                                    const OpenStream& open) {
  Generation generation;
  bool finished = false, writable = true;
  const absl::Time began = absl::Now();
  grpc::ClientContext context;
  connection.SetDeadline(&context);
  CancelOnInterrupt cancel(connection.interrupts(), [&context] { context.TryCancel(); });
  ProgressBar bar(console.err, console.err_tty);
  std::unique_ptr<grpc::ClientReader<v1::ChatEvent>> reader = open(&context);
  v1::ChatEvent event;
  while (reader->Read(&event)) {
    if (event.has_progress()) {
      Stage stage = DescribeProgress(event.progress());
      if (generation.answer.empty() && absl::Now() - began > kQuiet) bar.Show(stage.label, stage.fraction);
    } else if (event.has_delta()) {
      bar.Clear();
      std::string* answer = AnswerAt(event.delta().index(), &generation);
      if (answer == nullptr) continue;
      *answer += event.delta().text();
      if (echo && writable && answer == &generation.answer) {
        *console.out << TextFor(console, event.delta().text()) << std::flush;
        writable = console.out->good();
        if (!writable) context.TryCancel();  // nobody reads: do not go on computing
      }
    } else if (event.has_done()) {
      generation.done = std::move(*event.mutable_done());
      finished = true;
    }
  }
  bar.Clear();
  const grpc::Status status = reader->Finish();
  if (echo && !generation.answer.empty()) *console.out << std::endl;
  if (!writable) return absl::UnavailableError("stdout: cannot write the answer");
  absl::Status result = connection.Result(status, cancel.signal());
  if (!result.ok()) return result;
  if (!finished) return absl::InternalError("the router ended the stream without its Done event");
  return generation;
}

}  // namespace sluice
