// x.NAME(…) of strings, dicts, lists and loops.
#include <algorithm>
#include <iterator>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/text/jinja/builtins.h"
#include "common/text/jinja/text_ops.h"
#include "common/text/unicode.h"

namespace sluice::jinja {
namespace {

using Method = absl::StatusOr<Value> (*)(const Value& self, const Args& args, const Env& env);

// The argument at `place` as text; null if it is missing or None.
absl::StatusOr<const MarkedText*> TextArg(const Args& args, size_t place, absl::string_view name) {
  const Value* value = args.Get(place, name);
  if (value == nullptr || value->is_none()) return nullptr;
  if (!value->is_string())
    return absl::InvalidArgumentError(
        absl::StrCat("expected a string for ", name, ", not a ", value->TypeName()));
  return value->text();
}

absl::StatusOr<const MarkedText*> NeedText(const Args& args, size_t place, absl::string_view name) {
  SLUICE_ASSIGN_OR_RETURN(const MarkedText* text, TextArg(args, place, name));
  if (text == nullptr) return absl::InvalidArgumentError(absl::StrCat("a string for ", name, " is missing"));
  return text;
}

absl::StatusOr<int64_t> IntArg(const Args& args, size_t place, absl::string_view name, int64_t otherwise) {
  const Value* value = args.Get(place, name);
  if (value == nullptr || value->is_none()) return otherwise;
  if (!value->is_int()) return absl::InvalidArgumentError(absl::StrCat("expected an integer for ", name));
  return value->as_int();
}

template <bool left, bool right>
absl::StatusOr<Value> StripMethod(const Value& self, const Args& args, const Env& env) {
  SLUICE_RETURN_IF_ERROR(args.Only("strip", {"chars"}));
  SLUICE_ASSIGN_OR_RETURN(const MarkedText* chars, TextArg(args, 0, "chars"));
  std::optional<absl::string_view> set;
  if (chars != nullptr) set = chars->text();
  return NewText(Strip(*self.text(), set, left, right), env);
}

absl::StatusOr<Value> TextList(std::vector<MarkedText> parts, const Env& env) {
  SLUICE_RETURN_IF_ERROR(env.budget->Charge(4 * parts.size()));
  List list;
  for (MarkedText& part : parts) list.items.emplace_back(std::move(part));
  return NewList(std::move(list), env);
}

absl::StatusOr<Value> Split(const Value& self, const Args& args, const Env& env) {
  SLUICE_RETURN_IF_ERROR(args.Only("split", {"sep", "maxsplit"}));
  SLUICE_ASSIGN_OR_RETURN(const MarkedText* separator, TextArg(args, 0, "sep"));
  SLUICE_ASSIGN_OR_RETURN(int64_t max, IntArg(args, 1, "maxsplit", -1));
  if (separator == nullptr) return TextList(SplitWhiteSpace(*self.text(), max, env.budget->left()), env);
  if (separator->size() == 0) return absl::InvalidArgumentError("split: the separator is empty");
  return TextList(SplitAt(*self.text(), separator->text(), max, env.budget->left()), env);
}

absl::StatusOr<Value> SplitLinesMethod(const Value& self, const Args& args, const Env& env) {
  SLUICE_RETURN_IF_ERROR(args.Only("splitlines", {"keepends"}));
  const Value* keep = args.Get(0, "keepends");
  return TextList(SplitLines(*self.text(), keep != nullptr && keep->Truth(), env.budget->left()), env);
}

template <bool at_start>
absl::StatusOr<Value> Affix(const Value& self, const Args& args, const Env& env) {
  if (args.positional.size() != 1 || !args.named.empty())
    return absl::InvalidArgumentError("startswith, endswith: expected one argument");
  List one{{args.positional[0]}, true};
  const List* choices = args.positional[0].list() != nullptr ? args.positional[0].list() : &one;
  for (const Value& choice : choices->items) {
    if (!choice.is_string()) return absl::InvalidArgumentError("startswith, endswith: expected a string");
    absl::string_view text = self.text()->text(), affix = choice.text()->text();
    if (at_start ? absl::StartsWith(text, affix) : absl::EndsWith(text, affix)) return Value(true);
  }
  return Value(false);
}

template <bool at_start>
absl::StatusOr<Value> RemoveAffix(const Value& self, const Args& args, const Env& env) {
  SLUICE_RETURN_IF_ERROR(args.Only("removeprefix, removesuffix", {"affix"}));
  SLUICE_ASSIGN_OR_RETURN(const MarkedText* affix, NeedText(args, 0, "affix"));
  const MarkedText& text = *self.text();
  bool has =
      at_start ? absl::StartsWith(text.text(), affix->text()) : absl::EndsWith(text.text(), affix->text());
  if (!has) return self;
  return NewText(
      at_start ? text.Slice(affix->size(), text.size()) : text.Slice(0, text.size() - affix->size()), env);
}

template <Case to>
absl::StatusOr<Value> CaseMethod(const Value& self, const Args& args, const Env& env) {
  SLUICE_RETURN_IF_ERROR(args.Only("upper, lower, capitalize", {}));
  return NewText(ChangeCase(*self.text(), to), env);
}

absl::StatusOr<Value> Replace(const Value& self, const Args& args, const Env& env) {
  SLUICE_RETURN_IF_ERROR(args.Only("replace", {"old", "new", "count"}));
  SLUICE_ASSIGN_OR_RETURN(const MarkedText* from, NeedText(args, 0, "old"));
  SLUICE_ASSIGN_OR_RETURN(const MarkedText* to, NeedText(args, 1, "new"));
  SLUICE_ASSIGN_OR_RETURN(int64_t count, IntArg(args, 2, "count", -1));
  // At most one replacement a character: paid before it is made.
  size_t most = self.text()->size() / std::max<size_t>(1, from->size()) + 1;
  SLUICE_RETURN_IF_ERROR(env.budget->Charge(most * to->size() / 64));
  return NewText(ReplaceAll(*self.text(), from->text(), *to, count), env);
}

template <bool last>
absl::StatusOr<Value> FindMethod(const Value& self, const Args& args, const Env& env) {
  SLUICE_RETURN_IF_ERROR(args.Only("find", {"sub"}));
  SLUICE_ASSIGN_OR_RETURN(const MarkedText* sub, NeedText(args, 0, "sub"));
  absl::string_view text = self.text()->text();
  size_t at = last ? text.rfind(sub->text()) : text.find(sub->text());
  return Value(at == absl::string_view::npos ? int64_t{-1}
                                             : static_cast<int64_t>(CodePointCount(text.substr(0, at))));
}

absl::StatusOr<Value> Count(const Value& self, const Args& args, const Env& env) {
  SLUICE_RETURN_IF_ERROR(args.Only("count", {"sub"}));
  SLUICE_ASSIGN_OR_RETURN(const MarkedText* sub, NeedText(args, 0, "sub"));
  if (sub->size() == 0) return Value(static_cast<int64_t>(CodePointCount(self.text()->text())) + 1);
  int64_t count = 0;
  absl::string_view text = self.text()->text();
  for (size_t at = 0; (at = text.find(sub->text(), at)) != absl::string_view::npos; at += sub->size())
    ++count;
  return Value(count);
}

absl::StatusOr<Value> Join(const Value& self, const Args& args, const Env& env) {
  SLUICE_RETURN_IF_ERROR(args.Only("join", {"iterable"}));
  const Value* items = args.Get(0, "iterable");
  if (items == nullptr) return absl::InvalidArgumentError("join: expected a list");
  SLUICE_ASSIGN_OR_RETURN(auto list, Iterate(*items, env));
  for (const Value& item : list->items)
    if (!item.is_string())
      return absl::InvalidArgumentError(absl::StrCat("join: expected strings, not a ", item.TypeName()));
  return ApplyFilter("join", *items, {{self}, {}}, env);
}

absl::StatusOr<Value> DictItems(const Value& self, const Args& args, const Env& env) {
  SLUICE_RETURN_IF_ERROR(args.Only("items", {}));
  List list;
  for (const auto& [key, value] : self.dict()->entries) {
    SLUICE_ASSIGN_OR_RETURN(Value pair, NewList({{key, value}, true}, env));
    list.items.push_back(std::move(pair));
  }
  return NewList(std::move(list), env);
}

template <bool keys>
absl::StatusOr<Value> DictSide(const Value& self, const Args& args, const Env& env) {
  SLUICE_RETURN_IF_ERROR(args.Only("keys, values", {}));
  List list;
  for (const auto& [key, value] : self.dict()->entries) list.items.push_back(keys ? key : value);
  return NewList(std::move(list), env);
}

absl::StatusOr<Value> DictGet(const Value& self, const Args& args, const Env& env) {
  SLUICE_RETURN_IF_ERROR(args.Only("get", {"key", "default"}));
  const Value *key = args.Get(0, "key"), *otherwise = args.Get(1, "default");
  if (key == nullptr) return absl::InvalidArgumentError("get: expected a key");
  if (const Value* value = self.dict()->Find(*key)) return *value;
  return otherwise != nullptr ? *otherwise : Value();
}

absl::StatusOr<Value> ListIndex(const Value& self, const Args& args, const Env& env) {
  SLUICE_RETURN_IF_ERROR(args.Only("index", {"value"}));
  const Value* value = args.Get(0, "value");
  if (value == nullptr) return absl::InvalidArgumentError("index: expected a value");
  const auto& items = self.list()->items;
  auto at = std::find(items.begin(), items.end(), *value);
  if (at == items.end()) return absl::InvalidArgumentError("index: the value is not in the list");
  return Value(static_cast<int64_t>(at - items.begin()));
}

absl::StatusOr<Value> ListCount(const Value& self, const Args& args, const Env& env) {
  SLUICE_RETURN_IF_ERROR(args.Only("count", {"value"}));
  const Value* value = args.Get(0, "value");
  if (value == nullptr) return absl::InvalidArgumentError("count: expected a value");
  return Value(
      static_cast<int64_t>(std::count(self.list()->items.begin(), self.list()->items.end(), *value)));
}

absl::StatusOr<Value> Cycle(const Value& self, const Args& args, const Env& env) {
  if (args.positional.empty()) return absl::InvalidArgumentError("loop.cycle: expected values");
  return args.positional[self.loop()->index % args.positional.size()];
}

struct Row {
  const char* name;
  Method method;
};

const Row kTextMethods[] = {
    {"capitalize", CaseMethod<Case::kCapitalize>},
    {"count", Count},
    {"endswith", Affix<false>},
    {"find", FindMethod<false>},
    {"join", Join},
    {"lower", CaseMethod<Case::kLower>},
    {"lstrip", StripMethod<true, false>},
    {"removeprefix", RemoveAffix<true>},
    {"removesuffix", RemoveAffix<false>},
    {"replace", Replace},
    {"rfind", FindMethod<true>},
    {"rstrip", StripMethod<false, true>},
    {"split", Split},
    {"splitlines", SplitLinesMethod},
    {"startswith", Affix<true>},
    {"strip", StripMethod<true, true>},
    {"upper", CaseMethod<Case::kUpper>},
};
const Row kDictMethods[] = {
    {"get", DictGet}, {"items", DictItems}, {"keys", DictSide<true>}, {"values", DictSide<false>}};
const Row kListMethods[] = {{"count", ListCount}, {"index", ListIndex}};
const Row kLoopMethods[] = {{"cycle", Cycle}};

const Row* Find(const Value& object, absl::string_view name) {
  const Row *begin = nullptr, *end = nullptr;
  auto in = [&](const auto& rows) {
    begin = std::begin(rows);
    end = std::end(rows);
  };
  if (object.is_string()) in(kTextMethods);
  if (object.dict() != nullptr) in(kDictMethods);
  if (object.list() != nullptr) in(kListMethods);
  if (object.loop() != nullptr) in(kLoopMethods);
  const Row* row = std::find_if(begin, end, [&](const Row& r) { return name == r.name; });
  return row == end ? nullptr : row;
}

}  // namespace

bool IsMethod(const Value& object, absl::string_view name) { return Find(object, name) != nullptr; }

absl::StatusOr<Value> CallMethod(const Value& object, const std::string& name, const Args& args,
                                 const Env& env) {
  const Row* row = Find(object, name);
  if (row == nullptr)
    return absl::UnimplementedError(
        absl::StrCat("the method ", name, " of a ", object.TypeName(), " is not supported"));
  SLUICE_RETURN_IF_ERROR(env.budget->ChargeBytes(static_cast<size_t>(object.weight())));
  return row->method(object, args, env);
}

}  // namespace sluice::jinja
