#include "common/text/jinja/renderer.h"

#include <algorithm>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/text/jinja/arithmetic.h"
#include "common/text/jinja/builtins.h"
#include "common/text/jinja/text_ops.h"
#include "common/text/unicode.h"

namespace sluice::jinja {
namespace {

constexpr int kMaxMacroDepth = 16;
// Nested evaluations of nodes, macros included: bounds the stack.
constexpr int kMaxEvalDepth = 600;

enum class Flow { kNext, kBreak, kContinue };
using Scope = absl::flat_hash_map<std::string, Value>;

class Renderer {
 public:
  Renderer(const Dict& globals, absl::Time now, const RenderLimits& limits)
      : globals_(globals), limits_(limits), budget_(limits.max_steps), env_{&budget_, now}, frames_(1) {
    frames_[0].scopes.emplace_back();
  }

  absl::StatusOr<MarkedText> Run(const Body& body) {
    SLUICE_ASSIGN_OR_RETURN(Flow flow, Execute(body));
    (void)flow;
    return std::move(out_);
  }

 private:
  // The variables a macro sees of its own; the template itself is frame 0.
  struct Frame {
    std::vector<Scope> scopes;
  };

  struct Nest {
    explicit Nest(int* depth) : depth(depth) { ++*depth; }
    ~Nest() { --*depth; }
    int* depth;
  };

  // Puts the line before what a builtin says.
  static absl::Status At(int line, const absl::Status& status) {
    if (absl::StartsWith(status.message(), "chat template")) return status;
    return absl::Status(status.code(), absl::StrCat("chat template line ", line, ": ", status.message()));
  }
  template <class T>
  static absl::StatusOr<T> At(int line, absl::StatusOr<T> value) {
    if (value.ok()) return value;
    return At(line, value.status());
  }

  absl::StatusOr<Flow> Execute(const Body& body) {
    Nest nest(&depth_);
    if (depth_ > kMaxEvalDepth) return absl::ResourceExhaustedError("chat template: it nests too deeply");
    for (const auto& statement : body) {
      SLUICE_RETURN_IF_ERROR(budget_.Charge(1));
      SLUICE_ASSIGN_OR_RETURN(Flow flow, At(statement->line, Execute(*statement)));
      if (flow != Flow::kNext) return flow;
    }
    return Flow::kNext;
  }

  absl::Status Write(const MarkedText& text) {
    if (text.size() > limits_.max_output_bytes - out_.size())
      return absl::ResourceExhaustedError(
          absl::StrCat("chat template: its text is over ", limits_.max_output_bytes, " bytes"));
    SLUICE_RETURN_IF_ERROR(budget_.ChargeBytes(text.size()));
    out_.Append(text);
    return absl::OkStatus();
  }

  absl::StatusOr<Flow> Execute(const Stmt& s) {
    switch (s.kind) {
      case Stmt::kText:
        SLUICE_RETURN_IF_ERROR(Write(MarkedText(s.text)));
        return Flow::kNext;
      case Stmt::kOutput: {
        SLUICE_ASSIGN_OR_RETURN(Value value, Eval(*s.expr));
        SLUICE_RETURN_IF_ERROR(budget_.ChargeBytes(value.weight()));
        SLUICE_RETURN_IF_ERROR(value.is_string() ? Write(*value.text()) : Write(ToText(value)));
        return Flow::kNext;
      }
      case Stmt::kIf: {
        SLUICE_ASSIGN_OR_RETURN(Value condition, Eval(*s.expr));
        return Execute(condition.Truth() ? s.body : s.otherwise);
      }
      case Stmt::kFor:
        return For(s);
      case Stmt::kSet: {
        SLUICE_ASSIGN_OR_RETURN(Value value, Eval(*s.expr));
        SLUICE_RETURN_IF_ERROR(s.field.empty() ? Assign(s.targets, value) : SetField(s, value));
        return Flow::kNext;
      }
      case Stmt::kSetBlock: {
        SLUICE_ASSIGN_OR_RETURN(MarkedText text, Capture(s.body, /*own_scope=*/true));
        SLUICE_RETURN_IF_ERROR(Assign(s.targets, Value(std::move(text))));
        return Flow::kNext;
      }
      case Stmt::kMacro:
        Local()[s.text] = Value(Callable{s.text, Value(), &s});
        return Flow::kNext;
      case Stmt::kBreak:
        return Flow::kBreak;
      case Stmt::kContinue:
        return Flow::kContinue;
      case Stmt::kScope: {
        frame().scopes.emplace_back();
        absl::StatusOr<Flow> flow = Execute(s.body);
        frame().scopes.pop_back();
        return flow;
      }
    }
    return Flow::kNext;
  }

  Frame& frame() { return frames_.back(); }
  Scope& Local() { return frame().scopes.back(); }

  // The text of `body`, kept from the output.
  absl::StatusOr<MarkedText> Capture(const Body& body, bool own_scope) {
    MarkedText outer = std::exchange(out_, MarkedText());
    if (own_scope) frame().scopes.emplace_back();
    absl::StatusOr<Flow> flow = Execute(body);
    if (own_scope) frame().scopes.pop_back();
    MarkedText text = std::exchange(out_, std::move(outer));
    if (!flow.ok()) return flow.status();
    return text;
  }

  absl::Status Assign(const std::vector<std::string>& targets, const Value& value) {
    if (targets.size() == 1) {
      Local()[targets[0]] = value;
      return absl::OkStatus();
    }
    SLUICE_ASSIGN_OR_RETURN(auto items, Iterate(value, env_));
    if (items->items.size() != targets.size())
      return absl::InvalidArgumentError(
          absl::StrCat("cannot unpack ", items->items.size(), " values into ", targets.size(), " names"));
    for (size_t i = 0; i < targets.size(); ++i) Local()[targets[i]] = items->items[i];
    return absl::OkStatus();
  }

  absl::Status SetField(const Stmt& s, const Value& value) {
    Value object = Lookup(s.targets[0]);
    if (object.ns() == nullptr)
      return absl::InvalidArgumentError(
          absl::StrCat("cannot assign a field of ", s.targets[0], ": it is no namespace"));
    if (value.ns() != nullptr || value.loop() != nullptr)
      return absl::UnimplementedError(
          absl::StrCat("a ", value.TypeName(), " in a namespace is not supported"));
    object.ns()->fields[s.field] = value;
    return absl::OkStatus();
  }

  Value Lookup(const std::string& name) {
    for (auto scope = frame().scopes.rbegin(); scope != frame().scopes.rend(); ++scope)
      if (auto it = scope->find(name); it != scope->end()) return it->second;
    if (frames_.size() > 1)  // a macro sees the template's own variables, not those of who calls it
      if (auto it = frames_[0].scopes[0].find(name); it != frames_[0].scopes[0].end()) return it->second;
    if (const Value* global = globals_.Find(name)) return *global;
    if (IsFunction(name)) return Value(Callable{name, Value(), nullptr});
    return Value::MakeUndefined(name);
  }

  absl::StatusOr<Flow> For(const Stmt& s) {
    SLUICE_ASSIGN_OR_RETURN(Value over, Eval(*s.expr));
    SLUICE_ASSIGN_OR_RETURN(std::shared_ptr<const List> items, Iterate(over, env_));
    if (s.condition != nullptr) {
      auto kept = std::make_shared<List>();
      for (const Value& item : items->items) {
        SLUICE_RETURN_IF_ERROR(budget_.Charge(1));
        frame().scopes.emplace_back();
        absl::Status assigned = Assign(s.targets, item);
        absl::StatusOr<Value> keep = assigned.ok() ? Eval(*s.condition) : absl::StatusOr<Value>(assigned);
        frame().scopes.pop_back();
        if (!keep.ok()) return keep.status();
        if (keep->Truth()) kept->items.push_back(item);
      }
      items = std::move(kept);
    }
    if (items->items.empty()) return Execute(s.otherwise);
    absl::StatusOr<Flow> result = Flow::kNext;
    for (size_t i = 0; i < items->items.size(); ++i) {
      if (absl::Status status = budget_.Charge(1); !status.ok()) {
        result = status;
        break;
      }
      frame().scopes.emplace_back();
      Local()["loop"] = Value(Loop{items, i});
      absl::Status assigned = Assign(s.targets, items->items[i]);
      absl::StatusOr<Flow> flow = assigned.ok() ? Execute(s.body) : absl::StatusOr<Flow>(assigned);
      frame().scopes.pop_back();
      if (!flow.ok()) result = flow;
      if (!flow.ok() || *flow == Flow::kBreak) break;
    }
    return result;
  }

  absl::StatusOr<Value> Eval(const Expr& e) {
    Nest nest(&depth_);
    if (depth_ > kMaxEvalDepth) return absl::ResourceExhaustedError("chat template: it nests too deeply");
    SLUICE_RETURN_IF_ERROR(budget_.Charge(1));
    return At(e.line, EvalNode(e));
  }

  absl::StatusOr<Value> EvalNode(const Expr& e) {
    switch (e.kind) {
      case Expr::kConst:
        return e.value;
      case Expr::kName:
        return Lookup(e.name);
      case Expr::kList:
      case Expr::kTuple: {
        List list{{}, e.kind == Expr::kTuple};
        for (const ExprPtr& kid : e.kids) {
          SLUICE_ASSIGN_OR_RETURN(Value item, Eval(*kid));
          list.items.push_back(std::move(item));
        }
        return NewList(std::move(list), env_);
      }
      case Expr::kDict:
        return EvalDict(e);
      case Expr::kNot: {
        SLUICE_ASSIGN_OR_RETURN(Value value, Eval(*e.kids[0]));
        return Value(!value.Truth());
      }
      case Expr::kNegate:
      case Expr::kPlus: {
        SLUICE_ASSIGN_OR_RETURN(Value value, Eval(*e.kids[0]));
        if (!value.is_number())
          return absl::InvalidArgumentError(absl::StrCat("a ", value.TypeName(), " has no sign"));
        return Arithmetic(e.kind == Expr::kNegate ? "-" : "+", Value(int64_t{0}), value);
      }
      case Expr::kAnd:
      case Expr::kOr: {
        SLUICE_ASSIGN_OR_RETURN(Value left, Eval(*e.kids[0]));
        if (left.Truth() == (e.kind == Expr::kOr)) return left;
        return Eval(*e.kids[1]);
      }
      case Expr::kBinary:
        return EvalBinary(e);
      case Expr::kCompare:
        return EvalCompare(e);
      case Expr::kConcat: {
        MarkedText out;
        for (const ExprPtr& kid : e.kids) {
          SLUICE_ASSIGN_OR_RETURN(Value part, Eval(*kid));
          SLUICE_RETURN_IF_ERROR(budget_.ChargeBytes(part.weight()));
          out.Append(ToText(part));
        }
        return NewText(std::move(out), env_);
      }
      case Expr::kChoice: {
        SLUICE_ASSIGN_OR_RETURN(Value condition, Eval(*e.kids[1]));
        if (condition.Truth()) return Eval(*e.kids[0]);
        if (e.kids[2] == nullptr) return Value::MakeUndefined("the missing else");
        return Eval(*e.kids[2]);
      }
      case Expr::kAttribute: {
        SLUICE_ASSIGN_OR_RETURN(Value object, Eval(*e.kids[0]));
        SLUICE_RETURN_IF_ERROR(ChargeLookup(object));
        return Attribute(object, e.name);
      }
      case Expr::kItem: {
        SLUICE_ASSIGN_OR_RETURN(Value object, Eval(*e.kids[0]));
        SLUICE_ASSIGN_OR_RETURN(Value key, Eval(*e.kids[1]));
        SLUICE_RETURN_IF_ERROR(ChargeLookup(object));
        return Item(object, key);
      }
      case Expr::kSlice:
        return EvalSlice(e);
      case Expr::kCall:
        return EvalCall(e);
      case Expr::kFilter: {
        SLUICE_ASSIGN_OR_RETURN(Value subject, Eval(*e.kids[0]));
        SLUICE_ASSIGN_OR_RETURN(Args args, EvalArgs(e));
        return ApplyFilter(e.name, subject, args, env_);
      }
      case Expr::kTest: {
        SLUICE_ASSIGN_OR_RETURN(Value subject, Eval(*e.kids[0]));
        SLUICE_ASSIGN_OR_RETURN(Args args, EvalArgs(e));
        if (!args.named.empty())
          return absl::UnimplementedError("a named argument of a test is not supported");
        SLUICE_ASSIGN_OR_RETURN(bool holds, ApplyTest(e.name, subject, args.positional, env_));
        return Value(holds);
      }
    }
    return Value();
  }

  // Keys and characters are found one after the other.
  absl::Status ChargeLookup(const Value& object) {
    if (object.is_string()) return budget_.ChargeBytes(object.text()->size());
    return object.dict() != nullptr ? budget_.Charge(object.dict()->entries.size() / 8) : absl::OkStatus();
  }

  absl::StatusOr<Args> EvalArgs(const Expr& e) {
    Args args;
    for (size_t i = 1; i < e.kids.size(); ++i) {
      SLUICE_ASSIGN_OR_RETURN(Value value, Eval(*e.kids[i]));
      args.positional.push_back(std::move(value));
    }
    for (const auto& [name, expr] : e.named) {
      SLUICE_ASSIGN_OR_RETURN(Value value, Eval(*expr));
      args.named.emplace_back(name, std::move(value));
    }
    return args;
  }

  absl::StatusOr<Value> EvalDict(const Expr& e) {
    Dict dict;
    for (size_t i = 0; i < e.kids.size(); i += 2) {
      SLUICE_ASSIGN_OR_RETURN(Value key, Eval(*e.kids[i]));
      SLUICE_ASSIGN_OR_RETURN(Value value, Eval(*e.kids[i + 1]));
      SLUICE_RETURN_IF_ERROR(budget_.Charge(dict.entries.size()));
      auto same = std::find_if(dict.entries.begin(), dict.entries.end(),
                               [&](const auto& kv) { return kv.first == key; });
      if (same != dict.entries.end()) {
        same->second = std::move(value);
      } else {
        dict.entries.emplace_back(std::move(key), std::move(value));
      }
    }
    return NewDict(std::move(dict), env_);
  }

  absl::StatusOr<Value> EvalBinary(const Expr& e) {
    SLUICE_ASSIGN_OR_RETURN(Value a, Eval(*e.kids[0]));
    SLUICE_ASSIGN_OR_RETURN(Value b, Eval(*e.kids[1]));
    if (a.is_number() && b.is_number()) return Arithmetic(e.name, a, b);
    if (e.name == "+" && a.is_string() && b.is_string()) {
      MarkedText sum = *a.text();
      sum.Append(*b.text());
      return NewText(std::move(sum), env_);
    }
    if (e.name == "+" && a.list() != nullptr && b.list() != nullptr && a.list()->tuple == b.list()->tuple) {
      List sum = *a.list();
      sum.items.insert(sum.items.end(), b.list()->items.begin(), b.list()->items.end());
      return NewList(std::move(sum), env_);
    }
    if (e.name == "*" && a.is_string() && b.is_int()) {
      size_t times = static_cast<size_t>(std::max<int64_t>(0, b.as_int()));
      if (times > limits_.max_output_bytes)
        return absl::ResourceExhaustedError("a string is repeated too often");
      SLUICE_RETURN_IF_ERROR(
          budget_.ChargeBytes(times * std::min(a.text()->size(), limits_.max_output_bytes)));
      MarkedText out;
      for (size_t i = 0; i < times; ++i) out.Append(*a.text());
      return Value(std::move(out));
    }
    for (const Value* side : {&a, &b})
      if (side->is_undefined())
        return absl::InvalidArgumentError(absl::StrCat("'", side->undefined_name(), "' is undefined"));
    if (e.name == "%" && a.is_string()) return absl::UnimplementedError("formatting with % is not supported");
    return absl::InvalidArgumentError(
        absl::StrCat("cannot do ", a.TypeName(), " ", e.name, " ", b.TypeName()));
  }

  absl::StatusOr<Value> EvalCompare(const Expr& e) {
    SLUICE_ASSIGN_OR_RETURN(Value left, Eval(*e.kids[0]));
    for (size_t i = 0; i < e.ops.size(); ++i) {
      const std::string& op = e.ops[i];
      SLUICE_ASSIGN_OR_RETURN(Value right, Eval(*e.kids[i + 1]));
      SLUICE_RETURN_IF_ERROR(budget_.ChargeBytes(left.weight() + right.weight()));
      bool holds;
      if (op == "==" || op == "!=") {
        holds = (left == right) == (op == "==");
      } else if (op == "in" || op == "not in") {
        SLUICE_RETURN_IF_ERROR(budget_.Charge(right.weight() / 64 * (left.weight() / 64)));
        SLUICE_ASSIGN_OR_RETURN(bool found, Contains(right, left));
        holds = found == (op == "in");
      } else {
        SLUICE_ASSIGN_OR_RETURN(int order, Order(left, right));
        holds = op == "<" ? order < 0 : op == "<=" ? order <= 0 : op == ">" ? order > 0 : order >= 0;
      }
      if (!holds) return Value(false);
      left = std::move(right);
    }
    return Value(true);
  }

  absl::StatusOr<Value> EvalSlice(const Expr& e) {
    SLUICE_ASSIGN_OR_RETURN(Value object, Eval(*e.kids[0]));
    std::optional<int64_t> bounds[3];
    for (int i = 0; i < 3; ++i) {
      if (e.kids[i + 1] == nullptr) continue;
      SLUICE_ASSIGN_OR_RETURN(Value bound, Eval(*e.kids[i + 1]));
      if (bound.is_none()) continue;
      if (!bound.is_int()) return absl::InvalidArgumentError("the bounds of a slice must be integers");
      bounds[i] = bound.as_int();
    }
    int64_t step = bounds[2].value_or(1);
    if (step == 0) return absl::InvalidArgumentError("the step of a slice is zero");
    if (const List* list = object.list()) {
      SLUICE_RETURN_IF_ERROR(budget_.Charge(list->items.size()));
      List out{{}, list->tuple};
      for (size_t i : SliceIndices(list->items.size(), bounds[0], bounds[1], step))
        out.items.push_back(list->items[i]);
      return NewList(std::move(out), env_);
    }
    if (const MarkedText* text = object.text()) {
      SLUICE_RETURN_IF_ERROR(budget_.ChargeBytes(4 * text->size()));
      absl::string_view all = text->text();
      std::vector<size_t> starts;  // of code points, and the end
      for (size_t at = 0; at < all.size(); at += NextUtf8(all.substr(at)).length) starts.push_back(at);
      size_t length = starts.size();
      starts.push_back(all.size());
      MarkedText out;
      for (size_t i : SliceIndices(length, bounds[0], bounds[1], step))
        out.Append(*text, starts[i], starts[i + 1]);
      return NewText(std::move(out), env_);
    }
    if (object.is_undefined())
      return absl::InvalidArgumentError(absl::StrCat("'", object.undefined_name(), "' is undefined"));
    return absl::InvalidArgumentError(absl::StrCat("a ", object.TypeName(), " has no slices"));
  }

  absl::StatusOr<Value> EvalCall(const Expr& e) {
    SLUICE_ASSIGN_OR_RETURN(Value callee, Eval(*e.kids[0]));
    const Callable* callable = callee.callable();
    if (callable == nullptr) {
      if (callee.is_undefined()) {
        const Expr& named = *e.kids[0];
        if (named.kind == Expr::kAttribute)
          return absl::UnimplementedError(absl::StrCat("the method ", named.name, " is not supported"));
        return absl::UnimplementedError(
            absl::StrCat("the function ", callee.undefined_name(), " is not supported"));
      }
      return absl::InvalidArgumentError(absl::StrCat("a ", callee.TypeName(), " cannot be called"));
    }
    SLUICE_ASSIGN_OR_RETURN(Args args, EvalArgs(e));
    if (callable->macro != nullptr) return CallMacro(*callable->macro, args);
    if (!callable->self.is_none()) return CallMethod(callable->self, callable->name, args, env_);
    return CallFunction(callable->name, args, env_);
  }

  absl::StatusOr<Value> CallMacro(const Stmt& macro, const Args& args) {
    if (frames_.size() > kMaxMacroDepth)
      return absl::ResourceExhaustedError("chat template: macros call too deeply");
    std::vector<absl::string_view> names(macro.targets.begin(), macro.targets.end());
    SLUICE_RETURN_IF_ERROR(args.Only(macro.text, names));
    Frame next;
    next.scopes.emplace_back();
    frames_.push_back(std::move(next));
    absl::StatusOr<MarkedText> text = MacroText(macro, args);
    frames_.pop_back();
    if (!text.ok()) return text.status();
    return Value(*std::move(text));
  }

  absl::StatusOr<MarkedText> MacroText(const Stmt& macro, const Args& args) {
    for (size_t i = 0; i < macro.targets.size(); ++i) {
      const std::string& name = macro.targets[i];
      if (const Value* given = args.Get(i, name)) {
        Local()[name] = *given;
      } else if (macro.defaults[i] != nullptr) {
        SLUICE_ASSIGN_OR_RETURN(Value value, Eval(*macro.defaults[i]));
        Local()[name] = std::move(value);
      } else {
        Local()[name] = Value::MakeUndefined(name);
      }
    }
    return Capture(macro.body, /*own_scope=*/false);
  }

  const Dict& globals_;
  const RenderLimits limits_;
  Budget budget_;
  const Env env_;
  std::vector<Frame> frames_;
  MarkedText out_;
  int depth_ = 0;
};

}  // namespace

absl::StatusOr<MarkedText> Render(const Body& body, const Dict& globals, absl::Time now,
                                  const RenderLimits& limits) {
  return Renderer(globals, now, limits).Run(body);
}

}  // namespace sluice::jinja
