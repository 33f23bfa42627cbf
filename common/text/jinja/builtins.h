// Role: the filters, tests, methods and functions a template may use: one visible list of each.
// Threads: pure functions over the caller's budget.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/text/jinja/value.h"

namespace sluice::jinja {

// What a rendering may still spend. Every node costs a step, and every 64 bytes or one list item made cost
// one too, so that the budget bounds time and memory alike.
class Budget {
 public:
  explicit Budget(int64_t steps) : left_(steps) {}
  absl::Status Charge(size_t steps);
  absl::Status ChargeBytes(size_t bytes) { return Charge(1 + bytes / 64); }
  size_t left() const { return static_cast<size_t>(left_); }

 private:
  int64_t left_;
};

// What builtins need of the rendering.
struct Env {
  Budget* budget;
  absl::Time now;
};

struct Args {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> named;

  // By place or by name; null if not given.
  const Value* Get(size_t place, absl::string_view name) const;
  // InvalidArgument if there are more, or others, than `names`.
  absl::Status Only(absl::string_view what, const std::vector<absl::string_view>& names) const;
};

bool IsFilter(absl::string_view name);
absl::StatusOr<Value> ApplyFilter(const std::string& name, const Value& subject, const Args& args,
                                  const Env& env);

bool IsTest(absl::string_view name);
absl::StatusOr<bool> ApplyTest(const std::string& name, const Value& subject, const std::vector<Value>& args,
                               const Env& env);

bool IsMethod(const Value& object, absl::string_view name);
absl::StatusOr<Value> CallMethod(const Value& object, const std::string& name, const Args& args,
                                 const Env& env);

bool IsFunction(absl::string_view name);
absl::StatusOr<Value> CallFunction(const std::string& name, const Args& args, const Env& env);

// Shared with the renderer.
// The elements a loop would see.
absl::StatusOr<std::shared_ptr<const List>> Iterate(const Value& value, const Env& env);
// A list or dict; refused if too deep or too large, or if it would hold a namespace or a loop.
absl::StatusOr<Value> NewList(List list, const Env& env);
absl::StatusOr<Value> NewDict(Dict dict, const Env& env);
absl::StatusOr<Value> NewText(MarkedText text, const Env& env);
// object.name and object[key] as Jinja looks them up; a missing one is undefined.
absl::StatusOr<Value> Attribute(const Value& object, const std::string& name);
absl::StatusOr<Value> Item(const Value& object, const Value& key);
// -1, 0, 1; InvalidArgument for values without an order.
absl::StatusOr<int> Order(const Value& a, const Value& b);
absl::StatusOr<bool> Contains(const Value& container, const Value& item);

}  // namespace sluice::jinja
