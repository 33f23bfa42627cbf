#include "common/text/jinja/builtins.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/text/jinja/text_ops.h"
#include "common/text/unicode.h"

namespace sluice::jinja {
namespace {

constexpr int kMaxValueDepth = 64;
constexpr int64_t kMaxValueWeight = int64_t{1} << 28;

absl::Status CheckContained(const Value& item) {
  if (item.ns() != nullptr || item.loop() != nullptr)
    return absl::UnimplementedError(
        absl::StrCat("a ", item.TypeName(), " inside another value is not supported"));
  return absl::OkStatus();
}

absl::StatusOr<Value> CheckShape(Value value) {
  if (value.depth() > kMaxValueDepth) return absl::InvalidArgumentError("a value is nested too deeply");
  if (value.weight() > kMaxValueWeight) return absl::ResourceExhaustedError("a value is too large");
  return value;
}

absl::StatusOr<Value> LoopField(const Loop& loop, const std::string& name) {
  int64_t index = static_cast<int64_t>(loop.index), length = static_cast<int64_t>(loop.items->items.size());
  if (name == "index") return Value(index + 1);
  if (name == "index0") return Value(index);
  if (name == "revindex") return Value(length - index);
  if (name == "revindex0") return Value(length - index - 1);
  if (name == "first") return Value(index == 0);
  if (name == "last") return Value(index + 1 == length);
  if (name == "length") return Value(length);
  if (name == "depth") return Value(int64_t{1});  // more only in recursive loops
  if (name == "depth0") return Value(int64_t{0});
  if (name == "previtem")
    return index > 0 ? loop.items->items[index - 1] : Value::MakeUndefined("loop.previtem");
  if (name == "nextitem")
    return index + 1 < length ? loop.items->items[index + 1] : Value::MakeUndefined("loop.nextitem");
  return absl::UnimplementedError(absl::StrCat("loop.", name, " is not supported"));
}

}  // namespace

absl::Status Budget::Charge(size_t steps) {
  if (steps > static_cast<size_t>(left_)) {
    left_ = 0;
    return absl::ResourceExhaustedError("chat template: it takes too many steps");
  }
  left_ -= static_cast<int64_t>(steps);
  return absl::OkStatus();
}

const Value* Args::Get(size_t place, absl::string_view name) const {
  if (place < positional.size()) return &positional[place];
  for (const auto& [key, value] : named)
    if (key == name) return &value;
  return nullptr;
}

absl::Status Args::Only(absl::string_view what, const std::vector<absl::string_view>& names) const {
  if (positional.size() > names.size())
    return absl::InvalidArgumentError(absl::StrCat(what, ": too many arguments"));
  for (const auto& [key, value] : named)
    if (std::find(names.begin(), names.end(), absl::string_view(key)) == names.end())
      return absl::UnimplementedError(absl::StrCat(what, ": the argument ", key, " is not supported"));
  return absl::OkStatus();
}

absl::StatusOr<Value> NewList(List list, const Env& env) {
  SLUICE_RETURN_IF_ERROR(env.budget->Charge(1 + list.items.size()));
  for (const Value& item : list.items) SLUICE_RETURN_IF_ERROR(CheckContained(item));
  Value value(std::move(list));
  return CheckShape(std::move(value));
}

absl::StatusOr<Value> NewDict(Dict dict, const Env& env) {
  SLUICE_RETURN_IF_ERROR(env.budget->Charge(1 + 2 * dict.entries.size()));
  for (const auto& [key, item] : dict.entries) {
    SLUICE_RETURN_IF_ERROR(CheckContained(item));
    if (!key.is_string() && !key.is_number() && !key.is_none())
      return absl::UnimplementedError(absl::StrCat("a ", key.TypeName(), " as a key is not supported"));
  }
  Value value(std::move(dict));
  return CheckShape(std::move(value));
}

absl::StatusOr<Value> NewText(MarkedText text, const Env& env) {
  SLUICE_RETURN_IF_ERROR(env.budget->ChargeBytes(text.size()));
  return Value(std::move(text));
}

absl::StatusOr<std::shared_ptr<const List>> Iterate(const Value& value, const Env& env) {
  if (value.list() != nullptr) return value.shared_list();
  auto items = std::make_shared<List>();
  if (const Dict* dict = value.dict()) {
    SLUICE_RETURN_IF_ERROR(env.budget->Charge(dict->entries.size()));
    for (const auto& [key, item] : dict->entries) items->items.push_back(key);
    return items;
  }
  if (const MarkedText* text = value.text()) {
    SLUICE_RETURN_IF_ERROR(env.budget->Charge(4 * text->size()));
    for (MarkedText& c : Characters(*text)) items->items.emplace_back(std::move(c));
    return items;
  }
  if (value.is_undefined()) return items;
  return absl::InvalidArgumentError(absl::StrCat("a ", value.TypeName(), " is not iterable"));
}

absl::StatusOr<Value> Attribute(const Value& object, const std::string& name) {
  if (object.is_undefined())
    return absl::InvalidArgumentError(absl::StrCat("'", object.undefined_name(), "' is undefined"));
  if (const Loop* loop = object.loop(); loop != nullptr && name != "cycle") return LoopField(*loop, name);
  if (Namespace* ns = object.ns()) {
    auto it = ns->fields.find(name);
    return it == ns->fields.end() ? Value::MakeUndefined(name) : it->second;
  }
  if (IsMethod(object, name)) return Value(Callable{name, object, nullptr});
  if (const Dict* dict = object.dict())
    if (const Value* item = dict->Find(name)) return *item;
  return Value::MakeUndefined(name);
}

absl::StatusOr<Value> Item(const Value& object, const Value& key) {
  if (const Dict* dict = object.dict())
    if (const Value* item = dict->Find(key)) return *item;
  if (const MarkedText* name = key.text()) return Attribute(object, name->text());
  if (object.is_undefined())
    return absl::InvalidArgumentError(absl::StrCat("'", object.undefined_name(), "' is undefined"));
  if ((key.is_int() || key.is_bool()) && (object.list() != nullptr || object.is_string())) {
    int64_t index = key.as_int();
    int64_t length =
        object.list() != nullptr ? object.list()->items.size() : CodePointCount(object.text()->text());
    if (index < 0) index += length;
    if (index < 0 || index >= length) return Value::MakeUndefined(absl::StrCat("index ", key.as_int()));
    if (object.list() != nullptr) return object.list()->items[index];
    absl::string_view all = object.text()->text();
    size_t at = 0;
    for (; index > 0; --index) at += NextUtf8(all.substr(at)).length;
    return Value(object.text()->Slice(at, at + NextUtf8(all.substr(at)).length));
  }
  return Value::MakeUndefined(ToText(key).text());
}

absl::StatusOr<int> Order(const Value& a, const Value& b) {
  if (a.is_number() && b.is_number()) {
    if (!a.is_float() && !b.is_float()) return (a.as_int() > b.as_int()) - (a.as_int() < b.as_int());
    return (a.as_double() > b.as_double()) - (a.as_double() < b.as_double());
  }
  if (a.is_string() && b.is_string()) {
    int order = a.text()->text().compare(b.text()->text());
    return (order > 0) - (order < 0);
  }
  return absl::InvalidArgumentError(
      absl::StrCat("a ", a.TypeName(), " and a ", b.TypeName(), " have no order"));
}

absl::StatusOr<bool> Contains(const Value& container, const Value& item) {
  if (const MarkedText* text = container.text()) {
    if (!item.is_string())
      return absl::InvalidArgumentError(absl::StrCat("a ", item.TypeName(), " cannot be in a string"));
    return absl::StrContains(text->text(), item.text()->text());
  }
  if (const List* list = container.list())
    return std::find(list->items.begin(), list->items.end(), item) != list->items.end();
  if (const Dict* dict = container.dict()) return dict->Find(item) != nullptr;
  if (container.is_undefined()) return false;
  return absl::InvalidArgumentError(absl::StrCat("nothing is in a ", container.TypeName()));
}

bool IsFunction(absl::string_view name) {
  static constexpr absl::string_view kNames[] = {"range", "namespace", "dict", "raise_exception",
                                                 "strftime_now"};
  return std::find(std::begin(kNames), std::end(kNames), name) != std::end(kNames);
}

absl::StatusOr<Value> CallFunction(const std::string& name, const Args& args, const Env& env) {
  if (name == "raise_exception") {
    SLUICE_RETURN_IF_ERROR(args.Only(name, {"message"}));
    const Value* message = args.Get(0, "message");
    return absl::InvalidArgumentError(message != nullptr ? ToText(*message).text() : "raise_exception");
  }
  if (name == "strftime_now") {
    SLUICE_RETURN_IF_ERROR(args.Only(name, {"format"}));
    const Value* format = args.Get(0, "format");
    if (format == nullptr || !format->is_string())
      return absl::InvalidArgumentError("strftime_now: expected a format");
    return NewText(MarkedText(absl::FormatTime(format->text()->text(), env.now, absl::UTCTimeZone())), env);
  }
  if (name == "range") {
    int64_t bounds[3] = {0, 0, 1};
    if (args.positional.empty() || args.positional.size() > 3 || !args.named.empty())
      return absl::InvalidArgumentError("range: expected one to three integers");
    for (size_t i = 0; i < args.positional.size(); ++i) {
      if (!args.positional[i].is_int()) return absl::InvalidArgumentError("range: expected integers");
      bounds[args.positional.size() == 1 ? 1 : i] = args.positional[i].as_int();
    }
    auto [from, to, step] = bounds;
    if (step == 0) return absl::InvalidArgumentError("range: the step is zero");
    List list;
    for (int64_t i = from; step > 0 ? i < to : i > to;) {
      SLUICE_RETURN_IF_ERROR(env.budget->Charge(1));
      list.items.emplace_back(i);
      if (__builtin_add_overflow(i, step, &i)) break;
    }
    return NewList(std::move(list), env);
  }
  // namespace(a=1) and dict(a=1)
  if (!args.positional.empty())
    return absl::UnimplementedError(absl::StrCat(name, " of a value is not supported"));
  if (name == "namespace") {
    auto ns = std::make_shared<Namespace>();
    for (const auto& [key, value] : args.named) {
      SLUICE_RETURN_IF_ERROR(CheckContained(value));
      ns->fields[key] = value;
    }
    return Value(std::move(ns));
  }
  Dict dict;
  for (const auto& [key, value] : args.named) dict.entries.emplace_back(Value(absl::string_view(key)), value);
  return NewDict(std::move(dict), env);
}

}  // namespace sluice::jinja
