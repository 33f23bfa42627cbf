// x | NAME.
#include <algorithm>
#include <cmath>
#include <iterator>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/status.h"
#include "common/text/jinja/builtins.h"
#include "common/text/jinja/text_ops.h"
#include "common/text/unicode.h"

namespace sluice::jinja {
namespace {

using Filter = absl::StatusOr<Value> (*)(const Value& x, const Args& args, const Env& env);

absl::Status Wrong(absl::string_view filter, const Value& x) {
  return absl::InvalidArgumentError(absl::StrCat("the filter ", filter, " cannot take a ", x.TypeName()));
}

// x.a.b.0 for "a.b.0".
absl::StatusOr<Value> Path(const Value& x, const Value& path) {
  if (path.is_int()) return Item(x, path);
  if (!path.is_string()) return Wrong("by attribute", path);
  Value at = x;
  for (absl::string_view part : absl::StrSplit(path.text()->text(), '.')) {
    int64_t index;
    SLUICE_ASSIGN_OR_RETURN(at, Item(at, absl::SimpleAtoi(part, &index) ? Value(index) : Value(part)));
  }
  return at;
}

absl::StatusOr<Value> Trim(const Value& x, const Args& args, const Env& env) {
  SLUICE_RETURN_IF_ERROR(args.Only("trim", {"chars"}));
  const Value* chars = args.Get(0, "chars");
  std::optional<absl::string_view> set;
  if (chars != nullptr && chars->is_string()) set = chars->text()->text();
  return NewText(Strip(ToText(x), set, true, true), env);
}

absl::StatusOr<Value> Length(const Value& x, const Args& args, const Env& env) {
  SLUICE_RETURN_IF_ERROR(args.Only("length", {}));
  if (x.is_undefined()) return Value(int64_t{0});
  if (x.is_string()) return Value(static_cast<int64_t>(CodePointCount(x.text()->text())));
  if (x.list() != nullptr) return Value(static_cast<int64_t>(x.list()->items.size()));
  if (x.dict() != nullptr) return Value(static_cast<int64_t>(x.dict()->entries.size()));
  return Wrong("length", x);
}

absl::StatusOr<Value> ToJsonText(const Value& x, const Args& args, const Env& env) {
  SLUICE_RETURN_IF_ERROR(args.Only("tojson", {"ensure_ascii", "indent"}));
  const Value *ascii = args.Get(0, "ensure_ascii"), *indent = args.Get(1, "indent");
  if (ascii != nullptr && ascii->Truth())
    return absl::UnimplementedError("tojson with ensure_ascii is not supported");
  int spaces = -1;
  if (indent != nullptr && !indent->is_none()) {
    if (!indent->is_int() || indent->as_int() < 0 || indent->as_int() > 16)
      return absl::InvalidArgumentError("tojson: indent must be a whole number from 0 to 16");
    spaces = static_cast<int>(indent->as_int());
  }
  // Each item may stand on a line of its own.
  if (spaces > 0) SLUICE_RETURN_IF_ERROR(env.budget->ChargeBytes(x.weight() / 8 * spaces * x.depth()));
  MarkedText out;
  if (!ToJson(x, spaces, &out)) return Wrong("tojson", x);
  return NewText(std::move(out), env);
}

template <Case to>
absl::StatusOr<Value> Cased(const Value& x, const Args& args, const Env& env) {
  SLUICE_RETURN_IF_ERROR(args.Only("upper, lower, capitalize, title", {}));
  return NewText(ChangeCase(ToText(x), to), env);
}

absl::StatusOr<Value> Join(const Value& x, const Args& args, const Env& env) {
  SLUICE_RETURN_IF_ERROR(args.Only("join", {"d", "attribute"}));
  const Value *between = args.Get(0, "d"), *attribute = args.Get(1, "attribute");
  SLUICE_ASSIGN_OR_RETURN(auto items, Iterate(x, env));
  MarkedText out;
  for (size_t i = 0; i < items->items.size(); ++i) {
    Value item = items->items[i];
    if (attribute != nullptr) {
      SLUICE_ASSIGN_OR_RETURN(item, Path(item, *attribute));
    }
    size_t before = out.size();
    if (i > 0 && between != nullptr) out.Append(ToText(*between));
    out.Append(ToText(item));
    SLUICE_RETURN_IF_ERROR(env.budget->ChargeBytes(out.size() - before));
  }
  return Value(std::move(out));
}

absl::StatusOr<Value> Default(const Value& x, const Args& args, const Env& env) {
  SLUICE_RETURN_IF_ERROR(args.Only("default", {"default_value", "boolean"}));
  const Value *otherwise = args.Get(0, "default_value"), *boolean = args.Get(1, "boolean");
  bool missing = x.is_undefined() || (boolean != nullptr && boolean->Truth() && !x.Truth());
  if (!missing) return x;
  return otherwise != nullptr ? *otherwise : Value("");
}

absl::StatusOr<Value> First(const Value& x, const Args& args, const Env& env) {
  SLUICE_RETURN_IF_ERROR(args.Only("first", {}));
  SLUICE_ASSIGN_OR_RETURN(auto items, Iterate(x, env));
  return items->items.empty() ? Value::MakeUndefined("the first item of nothing") : items->items.front();
}

absl::StatusOr<Value> Last(const Value& x, const Args& args, const Env& env) {
  SLUICE_RETURN_IF_ERROR(args.Only("last", {}));
  SLUICE_ASSIGN_OR_RETURN(auto items, Iterate(x, env));
  return items->items.empty() ? Value::MakeUndefined("the last item of nothing") : items->items.back();
}

absl::StatusOr<Value> ToList(const Value& x, const Args& args, const Env& env) {
  SLUICE_RETURN_IF_ERROR(args.Only("list", {}));
  SLUICE_ASSIGN_OR_RETURN(auto items, Iterate(x, env));
  return NewList({items->items, false}, env);
}

absl::StatusOr<Value> Reverse(const Value& x, const Args& args, const Env& env) {
  SLUICE_RETURN_IF_ERROR(args.Only("reverse", {}));
  SLUICE_ASSIGN_OR_RETURN(auto items, Iterate(x, env));
  List list{{items->items.rbegin(), items->items.rend()}, false};
  if (!x.is_string()) return NewList(std::move(list), env);
  MarkedText out;
  for (const Value& c : list.items) out.Append(*c.text());
  return NewText(std::move(out), env);
}

absl::StatusOr<Value> ToStringText(const Value& x, const Args& args, const Env& env) {
  SLUICE_RETURN_IF_ERROR(args.Only("string", {}));
  return NewText(ToText(x), env);
}

absl::StatusOr<Value> Replace(const Value& x, const Args& args, const Env& env) {
  SLUICE_RETURN_IF_ERROR(args.Only("replace", {"old", "new", "count"}));
  return CallMethod(Value(ToText(x)), "replace", args, env);
}

absl::StatusOr<Value> Items(const Value& x, const Args& args, const Env& env) {
  SLUICE_RETURN_IF_ERROR(args.Only("items", {}));
  if (x.is_undefined()) return NewList({}, env);
  if (x.dict() == nullptr) return Wrong("items", x);
  return CallMethod(x, "items", args, env);
}

absl::StatusOr<Value> Map(const Value& x, const Args& args, const Env& env) {
  SLUICE_ASSIGN_OR_RETURN(auto items, Iterate(x, env));
  const Value* attribute = args.Get(SIZE_MAX, "attribute");
  if (attribute != nullptr) {
    SLUICE_RETURN_IF_ERROR(args.Only("map", {"attribute", "default"}));
  } else if (args.positional.empty() || !args.positional[0].is_string() ||
             !IsFilter(args.positional[0].text()->text())) {
    return absl::UnimplementedError("map takes attribute=... or the name of a supported filter");
  }
  const Value* otherwise = args.Get(SIZE_MAX, "default");
  List out;
  for (const Value& item : items->items) {
    Value mapped;
    if (attribute != nullptr) {
      SLUICE_ASSIGN_OR_RETURN(mapped, Path(item, *attribute));
      if (mapped.is_undefined() && otherwise != nullptr) mapped = *otherwise;
    } else {
      Args rest{{args.positional.begin() + 1, args.positional.end()}, args.named};
      SLUICE_ASSIGN_OR_RETURN(mapped, ApplyFilter(args.positional[0].text()->text(), item, rest, env));
    }
    out.items.push_back(std::move(mapped));
  }
  return NewList(std::move(out), env);
}

// select(test, …), reject, selectattr(attribute, test, …), rejectattr. Without a test: the truth of the
// value.
template <bool by_attribute, bool keep>
absl::StatusOr<Value> Select(const Value& x, const Args& args, const Env& env) {
  SLUICE_ASSIGN_OR_RETURN(auto items, Iterate(x, env));
  size_t first = by_attribute ? 1 : 0;
  if (!args.named.empty() || args.positional.size() < first)
    return absl::InvalidArgumentError("select, reject: expected an attribute or a test");
  std::vector<Value> rest;
  std::string test;
  if (args.positional.size() > first) {
    if (!args.positional[first].is_string())
      return absl::InvalidArgumentError("select, reject: expected a test's name");
    test = args.positional[first].text()->text();
    rest.assign(args.positional.begin() + first + 1, args.positional.end());
  }
  List out;
  for (const Value& item : items->items) {
    SLUICE_RETURN_IF_ERROR(env.budget->Charge(1));
    Value subject = item;
    if (by_attribute) {
      SLUICE_ASSIGN_OR_RETURN(subject, Path(item, args.positional[0]));
    }
    bool holds = subject.Truth();
    if (!test.empty()) {
      SLUICE_ASSIGN_OR_RETURN(holds, ApplyTest(test, subject, rest, env));
    }
    if (holds == keep) out.items.push_back(item);
  }
  return NewList(std::move(out), env);
}

absl::StatusOr<Value> ToInt(const Value& x, const Args& args, const Env& env) {
  SLUICE_RETURN_IF_ERROR(args.Only("int", {"default"}));
  const Value* otherwise = args.Get(0, "default");
  if (x.is_int() || x.is_bool()) return Value(x.as_int());
  double d;
  int64_t i;
  if (x.is_string() && absl::SimpleAtoi(x.text()->text(), &i)) return Value(i);
  if (x.is_float()) {
    d = x.as_double();
  } else if (!x.is_string() || !absl::SimpleAtod(x.text()->text(), &d)) {
    d = NAN;
  }
  if (std::fabs(d) < 9e18) return Value(static_cast<int64_t>(d));
  return otherwise != nullptr ? *otherwise : Value(int64_t{0});
}

absl::StatusOr<Value> ToFloat(const Value& x, const Args& args, const Env& env) {
  SLUICE_RETURN_IF_ERROR(args.Only("float", {"default"}));
  const Value* otherwise = args.Get(0, "default");
  double d;
  if (x.is_number()) return Value(x.as_double());
  if (x.is_string() && absl::SimpleAtod(x.text()->text(), &d)) return Value(d);
  return otherwise != nullptr ? *otherwise : Value(0.0);
}

absl::StatusOr<Value> Abs(const Value& x, const Args& args, const Env& env) {
  SLUICE_RETURN_IF_ERROR(args.Only("abs", {}));
  if (x.is_float()) return Value(std::fabs(x.as_double()));
  if (!x.is_number() || x.as_int() == INT64_MIN) return Wrong("abs", x);
  return Value(std::abs(x.as_int()));
}

struct Row {
  const char* name;
  Filter filter;
};

const Row kFilters[] = {
    {"abs", Abs},
    {"capitalize", Cased<Case::kCapitalize>},
    {"count", Length},
    {"d", Default},
    {"default", Default},
    {"first", First},
    {"float", ToFloat},
    {"int", ToInt},
    {"items", Items},
    {"join", Join},
    {"last", Last},
    {"length", Length},
    {"list", ToList},
    {"lower", Cased<Case::kLower>},
    {"map", Map},
    {"reject", Select<false, false>},
    {"rejectattr", Select<true, false>},
    {"replace", Replace},
    {"reverse", Reverse},
    {"safe", ToStringText},
    {"select", Select<false, true>},
    {"selectattr", Select<true, true>},
    {"string", ToStringText},
    {"title", Cased<Case::kTitle>},
    {"tojson", ToJsonText},
    {"trim", Trim},
    {"upper", Cased<Case::kUpper>},
};

const Row* Find(absl::string_view name) {
  const Row* row =
      std::find_if(std::begin(kFilters), std::end(kFilters), [&](const Row& r) { return name == r.name; });
  return row == std::end(kFilters) ? nullptr : row;
}

}  // namespace

bool IsFilter(absl::string_view name) { return Find(name) != nullptr; }

absl::StatusOr<Value> ApplyFilter(const std::string& name, const Value& subject, const Args& args,
                                  const Env& env) {
  const Row* row = Find(name);
  if (row == nullptr) return absl::UnimplementedError(absl::StrCat("the filter ", name, " is not supported"));
  SLUICE_RETURN_IF_ERROR(env.budget->ChargeBytes(static_cast<size_t>(subject.weight())));
  return row->filter(subject, args, env);
}

}  // namespace sluice::jinja
