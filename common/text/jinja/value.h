// Role: the values of a template: Python's, as far as chat templates use them.
// Why marks: strings remember which bytes came from message content.
// Threads: immutable except Namespace, which belongs to one rendering.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/string_view.h"
#include "common/text/marked_text.h"

namespace sluice::jinja {

class Value;
struct Stmt;

struct Undefined {
  std::string name;  // for messages
};
struct None {};
struct List {
  std::vector<Value> items;
  bool tuple = false;
};
struct Dict {
  std::vector<std::pair<Value, Value>> entries;  // in the order of insertion
  const Value* Find(const Value& key) const;
  const Value* Find(absl::string_view key) const;
};
struct Namespace {
  std::map<std::string, Value> fields;
};
// The `loop` of one iteration.
struct Loop {
  std::shared_ptr<const List> items;
  size_t index;
};
// A function of the template's world, a method bound to its object, or a macro.
struct Callable;

class Value {
 public:
  Value() : data_(None{}) {}
  explicit Value(bool b) : data_(b) {}
  explicit Value(int64_t i) : data_(i) {}
  explicit Value(double d) : data_(d) {}
  explicit Value(MarkedText text)
      : data_(std::make_shared<const MarkedText>(std::move(text))),
        weight_(8 + static_cast<int64_t>(this->text()->size())) {}
  explicit Value(absl::string_view text) : Value(MarkedText(text)) {}
  explicit Value(const char* text) : Value(MarkedText(text)) {}
  explicit Value(List list) : Value(std::make_shared<const List>(std::move(list))) {}
  explicit Value(Dict dict);
  explicit Value(std::shared_ptr<const List> list);
  explicit Value(std::shared_ptr<Namespace> ns) : data_(std::move(ns)) {}
  explicit Value(Loop loop) : data_(std::make_shared<const Loop>(std::move(loop))) {}
  explicit Value(Callable callable);
  static Value MakeUndefined(absl::string_view name) {
    Value v;
    v.data_ = Undefined{std::string(name)};
    return v;
  }

  bool is_undefined() const { return std::holds_alternative<Undefined>(data_); }
  bool is_none() const { return std::holds_alternative<None>(data_); }
  bool is_bool() const { return std::holds_alternative<bool>(data_); }
  bool is_int() const { return std::holds_alternative<int64_t>(data_); }
  bool is_float() const { return std::holds_alternative<double>(data_); }
  bool is_number() const { return is_bool() || is_int() || is_float(); }  // as in Python
  bool is_string() const { return text() != nullptr; }
  // Null if it is something else.
  const MarkedText* text() const { return Get<std::shared_ptr<const MarkedText>>(); }
  const List* list() const { return Get<std::shared_ptr<const List>>(); }
  const Dict* dict() const { return Get<std::shared_ptr<const Dict>>(); }
  Namespace* ns() const {
    auto* p = std::get_if<std::shared_ptr<Namespace>>(&data_);
    return p != nullptr ? p->get() : nullptr;
  }
  const Loop* loop() const { return Get<std::shared_ptr<const Loop>>(); }
  const Callable* callable() const { return Get<std::shared_ptr<const Callable>>(); }
  std::shared_ptr<const List> shared_list() const { return std::get<std::shared_ptr<const List>>(data_); }
  const std::string& undefined_name() const { return std::get<Undefined>(data_).name; }
  bool as_bool() const { return std::get<bool>(data_); }
  // Of a bool or int.
  int64_t as_int() const { return is_bool() ? as_bool() : std::get<int64_t>(data_); }
  // Of any number.
  double as_double() const { return is_float() ? std::get<double>(data_) : static_cast<double>(as_int()); }

  bool Truth() const;
  bool operator==(const Value& other) const;
  const char* TypeName() const;
  // Nesting of lists and dicts: 0 for a scalar.
  int depth() const { return depth_; }
  // About how many bytes it is when written out: what shares a part counts it again. Saturates.
  int64_t weight() const { return weight_; }

 private:
  template <class P>
  const typename P::element_type* Get() const {
    auto* p = std::get_if<P>(&data_);
    return p != nullptr ? p->get() : nullptr;
  }
  std::variant<Undefined, None, bool, int64_t, double, std::shared_ptr<const MarkedText>,
               std::shared_ptr<const List>, std::shared_ptr<const Dict>, std::shared_ptr<Namespace>,
               std::shared_ptr<const Loop>, std::shared_ptr<const Callable>>
      data_;
  void AddPart(const Value& part);

  int depth_ = 0;
  int64_t weight_ = 8;
};

struct Callable {
  std::string name;             // of the function or method
  Value self;                   // a method's object
  const Stmt* macro = nullptr;  // owned by the template
};

// Python's str(): what {{ x }} prints.
MarkedText ToText(const Value& value);
// Python's repr(): strings in quotes.
MarkedText ToRepr(const Value& value);
// json.dumps(ensure_ascii=False); indent < 0: on one line. False: the value has no JSON form.
bool ToJson(const Value& value, int indent, MarkedText* out);

}  // namespace sluice::jinja
