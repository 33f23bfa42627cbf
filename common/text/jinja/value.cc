#include "common/text/jinja/value.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/text/unicode.h"

namespace sluice::jinja {
namespace {

// Python's repr of a float: the shortest digits that read back the same.
std::string FloatText(double d) {
  if (std::isnan(d)) return "nan";
  if (std::isinf(d)) return d > 0 ? "inf" : "-inf";
  char buffer[64];
  double magnitude = std::fabs(d);
  bool scientific = magnitude != 0 && (magnitude < 1e-4 || magnitude >= 1e16);
  auto end = std::to_chars(buffer, buffer + sizeof(buffer), d,
                           scientific ? std::chars_format::scientific : std::chars_format::fixed);
  std::string text(buffer, end.ptr);
  if (!scientific && !absl::StrContains(text, ".")) text += ".0";
  return text;
}

MarkedText QuotedRepr(const MarkedText& text) {
  absl::string_view all = text.text();
  char quote = absl::StrContains(all, "'") && !absl::StrContains(all, "\"") ? '"' : '\'';
  MarkedText out(absl::string_view(&quote, 1));
  for (size_t i = 0; i < all.size();) {
    Utf8Step step = NextUtf8(all.substr(i));
    char32_t c = step.code_point;
    bool marked = text.marked(i);
    if (c == '\n' || c == '\r' || c == '\t' || c == '\\' || c == static_cast<char32_t>(quote)) {
      char escaped = c == '\n' ? 'n' : c == '\r' ? 'r' : c == '\t' ? 't' : static_cast<char>(c);
      out.Append(absl::StrCat("\\", std::string(1, escaped)), marked);
    } else if (IsPrintable(c)) {
      out.Append(all.substr(i, step.length), marked);
    } else {
      const unsigned code = c;
      out.Append(code < 0x100     ? absl::StrFormat("\\x%02x", code)
                 : code < 0x10000 ? absl::StrFormat("\\u%04x", code)
                                  : absl::StrFormat("\\U%08x", code),
                 marked);
    }
    i += step.length;
  }
  out.Append(absl::string_view(&quote, 1), false);
  return out;
}

void JsonString(const MarkedText& text, MarkedText* out) {
  out->Append("\"", false);
  absl::string_view all = text.text();
  for (size_t i = 0; i < all.size(); ++i) {
    unsigned char c = all[i];
    bool marked = text.marked(i);
    static constexpr absl::string_view kPlain = "\"\\\n\r\t\b\f", kEscaped = "\"\\nrtbf";
    if (size_t at = kPlain.find(static_cast<char>(c)); at != absl::string_view::npos) {
      out->Append("\\", marked);
      out->Append(kEscaped.substr(at, 1), marked);
    } else if (c < 0x20) {
      out->Append(absl::StrFormat("\\u%04x", c), marked);
    } else {
      out->Append(all.substr(i, 1), marked);
    }
  }
  out->Append("\"", false);
}

bool JsonAt(const Value& value, int indent, int level, MarkedText* out) {
  auto separate = [&](int at) {
    if (indent >= 0)
      out->Append(absl::StrCat("\n", std::string(static_cast<size_t>(indent) * at, ' ')), false);
  };
  const char* comma = indent >= 0 ? "," : ", ";
  if (value.is_none()) {
    out->Append("null", false);
  } else if (value.is_bool()) {
    out->Append(value.as_bool() ? "true" : "false", false);
  } else if (value.is_int()) {
    out->Append(absl::StrCat(value.as_int()), false);
  } else if (value.is_float()) {
    double d = value.as_double();
    out->Append(std::isnan(d)   ? "NaN"
                : std::isinf(d) ? (d > 0 ? "Infinity" : "-Infinity")
                                : FloatText(d),
                false);
  } else if (const MarkedText* text = value.text()) {
    JsonString(*text, out);
  } else if (const List* list = value.list()) {
    out->Append("[", false);
    for (size_t i = 0; i < list->items.size(); ++i) {
      if (i > 0) out->Append(comma, false);
      separate(level + 1);
      if (!JsonAt(list->items[i], indent, level + 1, out)) return false;
    }
    if (!list->items.empty()) separate(level);
    out->Append("]", false);
  } else if (const Dict* dict = value.dict()) {
    out->Append("{", false);
    for (size_t i = 0; i < dict->entries.size(); ++i) {
      const auto& [key, item] = dict->entries[i];
      if (i > 0) out->Append(comma, false);
      separate(level + 1);
      if (key.is_string()) {
        JsonString(*key.text(), out);
      } else {
        MarkedText bare;
        if (key.list() != nullptr || !JsonAt(key, -1, 0, &bare)) return false;
        JsonString(bare, out);
      }
      out->Append(": ", false);
      if (!JsonAt(item, indent, level + 1, out)) return false;
    }
    if (!dict->entries.empty()) separate(level);
    out->Append("}", false);
  } else {
    return false;
  }
  return true;
}

}  // namespace

void Value::AddPart(const Value& part) {
  depth_ = std::max(depth_, part.depth_ + 1);
  weight_ = std::min(weight_ + part.weight_, int64_t{1} << 40);
}

Value::Value(std::shared_ptr<const List> list) : depth_(1) {
  for (const Value& item : list->items) AddPart(item);
  data_ = std::move(list);
}

Value::Value(Dict dict) : depth_(1) {
  for (const auto& [key, item] : dict.entries) {
    AddPart(key);
    AddPart(item);
  }
  data_ = std::make_shared<const Dict>(std::move(dict));
}

Value::Value(Callable callable) {
  AddPart(callable.self);
  data_ = std::make_shared<const Callable>(std::move(callable));
}

const Value* Dict::Find(const Value& key) const {
  for (const auto& [k, v] : entries)
    if (k == key) return &v;
  return nullptr;
}

const Value* Dict::Find(absl::string_view key) const {
  for (const auto& [k, v] : entries)
    if (k.is_string() && k.text()->text() == key) return &v;
  return nullptr;
}

bool Value::Truth() const {
  if (is_undefined() || is_none()) return false;
  if (is_number()) return as_double() != 0;
  if (const MarkedText* t = text()) return t->size() > 0;
  if (const List* l = list()) return !l->items.empty();
  if (const Dict* d = dict()) return !d->entries.empty();
  return true;
}

bool Value::operator==(const Value& other) const {
  if (is_number() && other.is_number())
    return is_float() || other.is_float() ? as_double() == other.as_double() : as_int() == other.as_int();
  if (is_undefined() || is_none()) return data_.index() == other.data_.index();
  if (text() != nullptr && other.text() != nullptr) return text()->text() == other.text()->text();
  if (const List* a = list(), *b = other.list(); a != nullptr && b != nullptr)
    return a == b || (a->tuple == b->tuple && a->items == b->items);
  if (const Dict* a = dict(), *b = other.dict(); a != nullptr && b != nullptr) {
    if (a == b) return true;
    if (a->entries.size() != b->entries.size()) return false;
    for (const auto& [key, item] : a->entries) {
      const Value* match = b->Find(key);
      if (match == nullptr || !(*match == item)) return false;
    }
    return true;
  }
  return (ns() != nullptr && ns() == other.ns()) || (loop() != nullptr && loop() == other.loop()) ||
         (callable() != nullptr && callable() == other.callable());
}

const char* Value::TypeName() const {
  static constexpr const char* kNames[] = {"undefined", "none", "boolean",   "integer", "float",   "string",
                                           "list",      "dict", "namespace", "loop",    "function"};
  return kNames[data_.index()];
}

MarkedText ToRepr(const Value& value) {
  if (const MarkedText* text = value.text()) return QuotedRepr(*text);
  if (const List* list = value.list()) {
    MarkedText out(list->tuple ? "(" : "[");
    for (size_t i = 0; i < list->items.size(); ++i) {
      if (i > 0) out.Append(", ", false);
      out.Append(ToRepr(list->items[i]));
    }
    if (list->tuple && list->items.size() == 1) out.Append(",", false);
    out.Append(list->tuple ? ")" : "]", false);
    return out;
  }
  if (const Dict* dict = value.dict()) {
    MarkedText out("{");
    for (size_t i = 0; i < dict->entries.size(); ++i) {
      if (i > 0) out.Append(", ", false);
      out.Append(ToRepr(dict->entries[i].first));
      out.Append(": ", false);
      out.Append(ToRepr(dict->entries[i].second));
    }
    out.Append("}", false);
    return out;
  }
  return value.is_undefined() ? MarkedText("Undefined") : ToText(value);
}

MarkedText ToText(const Value& value) {
  if (const MarkedText* text = value.text()) return *text;
  if (value.is_undefined()) return MarkedText();
  if (value.is_none()) return MarkedText("None");
  if (value.is_bool()) return MarkedText(value.as_bool() ? "True" : "False");
  if (value.is_int()) return MarkedText(absl::StrCat(value.as_int()));
  if (value.is_float()) return MarkedText(FloatText(value.as_double()));
  if (value.list() != nullptr || value.dict() != nullptr) return ToRepr(value);
  return MarkedText(absl::StrCat("<", value.TypeName(), ">"));
}

bool ToJson(const Value& value, int indent, MarkedText* out) { return JsonAt(value, indent, 0, out); }

}  // namespace sluice::jinja
