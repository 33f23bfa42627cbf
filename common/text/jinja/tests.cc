// x is NAME.
#include <algorithm>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/text/jinja/builtins.h"

namespace sluice::jinja {
namespace {

using Test = absl::StatusOr<bool> (*)(const Value& x, const std::vector<Value>& args);

absl::StatusOr<int64_t> Whole(const Value& x) {
  if (x.is_int() || x.is_bool()) return x.as_int();
  return absl::InvalidArgumentError(absl::StrCat("expected an integer, not a ", x.TypeName()));
}

template <class Holds>
absl::StatusOr<bool> Ordered(const Value& x, const Value& y, Holds holds) {
  SLUICE_ASSIGN_OR_RETURN(int order, Order(x, y));
  return holds(order);
}

struct Row {
  const char* name;
  size_t arguments;
  Test test;
};

#define TEST_OF(condition) \
  [](const Value& x, const std::vector<Value>& args) -> absl::StatusOr<bool> { return condition; }

const Row kTests[] = {
    {"defined", 0, TEST_OF(!x.is_undefined())},
    {"undefined", 0, TEST_OF(x.is_undefined())},
    {"none", 0, TEST_OF(x.is_none())},
    {"string", 0, TEST_OF(x.is_string())},
    {"number", 0, TEST_OF(x.is_number())},
    {"integer", 0, TEST_OF(x.is_int())},
    {"float", 0, TEST_OF(x.is_float())},
    {"boolean", 0, TEST_OF(x.is_bool())},
    {"true", 0, TEST_OF(x.is_bool() && x.as_bool())},
    {"false", 0, TEST_OF(x.is_bool() && !x.as_bool())},
    {"mapping", 0, TEST_OF(x.dict() != nullptr)},
    {"iterable", 0, TEST_OF(x.is_undefined() || x.is_string() || x.list() != nullptr || x.dict() != nullptr)},
    {"sequence", 0, TEST_OF(x.is_undefined() || x.is_string() || x.list() != nullptr || x.dict() != nullptr)},
    {"callable", 0, TEST_OF(x.callable() != nullptr)},
    {"in", 1, TEST_OF(Contains(args[0], x))},
    {"eq", 1, TEST_OF(x == args[0])},
    {"equalto", 1, TEST_OF(x == args[0])},
    {"==", 1, TEST_OF(x == args[0])},
    {"ne", 1, TEST_OF(!(x == args[0]))},
    {"!=", 1, TEST_OF(!(x == args[0]))},
    {"lt", 1, TEST_OF(Ordered(x, args[0], [](int order) { return order < 0; }))},
    {"lessthan", 1, TEST_OF(Ordered(x, args[0], [](int order) { return order < 0; }))},
    {"le", 1, TEST_OF(Ordered(x, args[0], [](int order) { return order <= 0; }))},
    {"gt", 1, TEST_OF(Ordered(x, args[0], [](int order) { return order > 0; }))},
    {"greaterthan", 1, TEST_OF(Ordered(x, args[0], [](int order) { return order > 0; }))},
    {"ge", 1, TEST_OF(Ordered(x, args[0], [](int order) { return order >= 0; }))},
    {"even", 0,
     [](const Value& x, const std::vector<Value>&) -> absl::StatusOr<bool> {
       SLUICE_ASSIGN_OR_RETURN(int64_t i, Whole(x));
       return i % 2 == 0;
     }},
    {"odd", 0,
     [](const Value& x, const std::vector<Value>&) -> absl::StatusOr<bool> {
       SLUICE_ASSIGN_OR_RETURN(int64_t i, Whole(x));
       return i % 2 != 0;
     }},
    {"divisibleby", 1,
     [](const Value& x, const std::vector<Value>& args) -> absl::StatusOr<bool> {
       SLUICE_ASSIGN_OR_RETURN(int64_t i, Whole(x));
       SLUICE_ASSIGN_OR_RETURN(int64_t by, Whole(args[0]));
       if (by == 0) return absl::InvalidArgumentError("division by zero");
       return by == -1 || i % by == 0;
     }},
};
#undef TEST_OF

const Row* Find(absl::string_view name) {
  const Row* row =
      std::find_if(std::begin(kTests), std::end(kTests), [&](const Row& r) { return name == r.name; });
  return row == std::end(kTests) ? nullptr : row;
}

}  // namespace

bool IsTest(absl::string_view name) { return Find(name) != nullptr; }

absl::StatusOr<bool> ApplyTest(const std::string& name, const Value& subject, const std::vector<Value>& args,
                               const Env& env) {
  // A search may look at every byte of both for each 64 of the other.
  int64_t cost = 1 + subject.weight() / 64;
  for (const Value& arg : args) cost += arg.weight() / 64 * (1 + subject.weight() / 64);
  SLUICE_RETURN_IF_ERROR(env.budget->Charge(static_cast<size_t>(cost)));
  const Row* row = Find(name);
  if (row == nullptr) return absl::UnimplementedError(absl::StrCat("the test ", name, " is not supported"));
  if (args.size() != row->arguments)
    return absl::InvalidArgumentError(
        absl::StrCat("the test ", name, " takes ", row->arguments, " arguments"));
  return row->test(subject, args);
}

}  // namespace sluice::jinja
