#include "common/text/jinja/expression_parser.h"

#include <iterator>

#include "absl/strings/numbers.h"
#include "common/base/status.h"
#include "common/text/jinja/builtins.h"

namespace sluice::jinja {

absl::StatusOr<ExprPtr> ExpressionParser::TupleExpr() {
  int at = line();
  SLUICE_ASSIGN_OR_RETURN(ExprPtr first, Expression());
  if (!AtOp(",")) return first;
  std::vector<ExprPtr> items;
  items.push_back(std::move(first));
  while (TakeOp(",")) {
    if (peek().type == Token::kBlockEnd || peek().type == Token::kOutputEnd || AtOp(")") || AtOp("=")) break;
    SLUICE_ASSIGN_OR_RETURN(ExprPtr item, Expression());
    items.push_back(std::move(item));
  }
  return Make(Expr::kTuple, at, std::move(items));
}

absl::StatusOr<ExprPtr> ExpressionParser::Expression() {
  Nest nest(&depth_);
  if (depth_ > kMaxParseDepth) return ErrorAt(line(), "an expression is nested too deeply");
  int at = line();
  SLUICE_ASSIGN_OR_RETURN(ExprPtr value, Or());
  while (!no_choice_ && TakeName("if")) {
    SLUICE_ASSIGN_OR_RETURN(ExprPtr condition, Or());
    ExprPtr otherwise;
    if (TakeName("else")) {
      SLUICE_ASSIGN_OR_RETURN(otherwise, Expression());
    }
    SLUICE_ASSIGN_OR_RETURN(
        value, Make2(Expr::kChoice, at, "", std::move(value), std::move(condition), std::move(otherwise)));
  }
  return value;
}

absl::StatusOr<ExprPtr> ExpressionParser::Or() {
  int at = line();
  SLUICE_ASSIGN_OR_RETURN(ExprPtr left, And());
  while (TakeName("or")) {
    SLUICE_ASSIGN_OR_RETURN(ExprPtr right, And());
    SLUICE_ASSIGN_OR_RETURN(left, Make2(Expr::kOr, at, "", std::move(left), std::move(right)));
  }
  return left;
}

absl::StatusOr<ExprPtr> ExpressionParser::And() {
  int at = line();
  SLUICE_ASSIGN_OR_RETURN(ExprPtr left, Not());
  while (TakeName("and")) {
    SLUICE_ASSIGN_OR_RETURN(ExprPtr right, Not());
    SLUICE_ASSIGN_OR_RETURN(left, Make2(Expr::kAnd, at, "", std::move(left), std::move(right)));
  }
  return left;
}

absl::StatusOr<ExprPtr> ExpressionParser::Not() {
  int at = line();
  int count = 0;
  while (AtName("not")) {
    ++at_;
    ++count;
  }
  SLUICE_ASSIGN_OR_RETURN(ExprPtr value, Compare());
  for (; count > 0; --count) {
    SLUICE_ASSIGN_OR_RETURN(value, Make2(Expr::kNot, at, "", std::move(value)));
  }
  return value;
}

absl::StatusOr<ExprPtr> ExpressionParser::Compare() {
  int at = line();
  SLUICE_ASSIGN_OR_RETURN(ExprPtr first, Sum());
  std::vector<std::string> ops;
  std::vector<ExprPtr> operands;
  operands.push_back(std::move(first));
  while (true) {
    static constexpr absl::string_view kOps[] = {"==", "!=", "<", "<=", ">", ">="};
    if (peek().type == Token::kOperator &&
        std::find(std::begin(kOps), std::end(kOps), peek().text) != std::end(kOps)) {
      ops.push_back(Next().text);
    } else if (TakeName("in")) {
      ops.push_back("in");
    } else if (AtName("not") && ahead().type == Token::kName && ahead().text == "in") {
      at_ += 2;
      ops.push_back("not in");
    } else {
      break;
    }
    SLUICE_ASSIGN_OR_RETURN(ExprPtr operand, Sum());
    operands.push_back(std::move(operand));
  }
  if (ops.empty()) return std::move(operands[0]);
  SLUICE_ASSIGN_OR_RETURN(ExprPtr compare, Make(Expr::kCompare, at, std::move(operands)));
  compare->ops = std::move(ops);
  return compare;
}

absl::StatusOr<ExprPtr> ExpressionParser::Sum() {
  return Chain({"+", "-"}, [this] { return Concat(); });
}

absl::StatusOr<ExprPtr> ExpressionParser::Concat() {
  int at = line();
  SLUICE_ASSIGN_OR_RETURN(ExprPtr first, Product());
  if (!AtOp("~")) return first;
  std::vector<ExprPtr> parts;
  parts.push_back(std::move(first));
  while (TakeOp("~")) {
    SLUICE_ASSIGN_OR_RETURN(ExprPtr part, Product());
    parts.push_back(std::move(part));
  }
  return Make(Expr::kConcat, at, std::move(parts));
}

absl::StatusOr<ExprPtr> ExpressionParser::Product() {
  return Chain({"*", "/", "//", "%"}, [this] { return Chain({"**"}, [this] { return Unary(true); }); });
}

absl::StatusOr<ExprPtr> ExpressionParser::Unary(bool with_filters) {
  Nest nest(&depth_);
  if (depth_ > kMaxParseDepth) return ErrorAt(line(), "an expression is nested too deeply");
  int at = line();
  ExprPtr value;
  if (AtOp("-") || AtOp("+")) {
    bool negate = Next().text == "-";
    SLUICE_ASSIGN_OR_RETURN(ExprPtr operand, Unary(false));
    SLUICE_ASSIGN_OR_RETURN(value, Make2(negate ? Expr::kNegate : Expr::kPlus, at, "", std::move(operand)));
  } else {
    SLUICE_ASSIGN_OR_RETURN(value, Primary());
  }
  SLUICE_ASSIGN_OR_RETURN(value, Postfix(std::move(value)));
  if (!with_filters) return value;
  return Filters(std::move(value));
}

absl::StatusOr<ExprPtr> ExpressionParser::Constant(int at, Value value) {
  SLUICE_ASSIGN_OR_RETURN(ExprPtr node, Make(Expr::kConst, at, {}));
  node->value = std::move(value);
  return node;
}

absl::StatusOr<ExprPtr> ExpressionParser::Primary() {
  int at = line();
  switch (peek().type) {
    case Token::kName: {
      std::string name = Next().text;
      if (name == "true" || name == "True") return Constant(at, Value(true));
      if (name == "false" || name == "False") return Constant(at, Value(false));
      if (name == "none" || name == "None") return Constant(at, Value());
      return Make(Expr::kName, at, {}, std::move(name));
    }
    case Token::kString: {
      std::string text;
      while (peek().type == Token::kString) text += Next().text;  // neighbours join
      return Constant(at, Value(absl::string_view(text)));
    }
    case Token::kInt: {
      int64_t i;
      if (!absl::SimpleAtoi(Next().text, &i)) return ErrorAt(at, "an integer is too large");
      return Constant(at, Value(i));
    }
    case Token::kFloat: {
      double d;
      if (!absl::SimpleAtod(Next().text, &d)) return ErrorAt(at, "a bad number");
      return Constant(at, Value(d));
    }
    case Token::kOperator:
      if (TakeOp("(")) return InBrackets([this, at] { return Parenthesis(at); });
      if (TakeOp("[")) return InBrackets([this, at] { return ListItems(at); });
      if (TakeOp("{")) return InBrackets([this, at] { return DictItems(at); });
      return Unexpected("an expression");
    default:
      return Unexpected("an expression");
  }
}

absl::StatusOr<ExprPtr> ExpressionParser::Parenthesis(int at) {
  if (TakeOp(")")) return Make(Expr::kTuple, at, {});
  SLUICE_ASSIGN_OR_RETURN(ExprPtr value, TupleExpr());
  SLUICE_RETURN_IF_ERROR(ExpectOp(")"));
  return value;
}

absl::StatusOr<ExprPtr> ExpressionParser::ListItems(int at) {
  std::vector<ExprPtr> items;
  while (!TakeOp("]")) {
    if (!items.empty()) {
      SLUICE_RETURN_IF_ERROR(ExpectOp(","));
      if (TakeOp("]")) break;
    }
    SLUICE_ASSIGN_OR_RETURN(ExprPtr item, Expression());
    items.push_back(std::move(item));
  }
  return Make(Expr::kList, at, std::move(items));
}

absl::StatusOr<ExprPtr> ExpressionParser::DictItems(int at) {
  std::vector<ExprPtr> items;
  while (!TakeOp("}")) {
    if (!items.empty()) {
      SLUICE_RETURN_IF_ERROR(ExpectOp(","));
      if (TakeOp("}")) break;
    }
    SLUICE_ASSIGN_OR_RETURN(ExprPtr key, Expression());
    SLUICE_RETURN_IF_ERROR(ExpectOp(":"));
    SLUICE_ASSIGN_OR_RETURN(ExprPtr value, Expression());
    items.push_back(std::move(key));
    items.push_back(std::move(value));
  }
  return Make(Expr::kDict, at, std::move(items));
}

absl::StatusOr<ExprPtr> ExpressionParser::Postfix(ExprPtr value) {
  while (true) {
    int at = line();
    if (TakeOp(".")) {
      if (peek().type == Token::kInt) {
        SLUICE_ASSIGN_OR_RETURN(ExprPtr index, Primary());
        SLUICE_ASSIGN_OR_RETURN(value, Make2(Expr::kItem, at, "", std::move(value), std::move(index)));
        continue;
      }
      SLUICE_ASSIGN_OR_RETURN(std::string name, Name("an attribute"));
      SLUICE_ASSIGN_OR_RETURN(value, Make2(Expr::kAttribute, at, std::move(name), std::move(value)));
    } else if (TakeOp("[")) {
      SLUICE_ASSIGN_OR_RETURN(value, InBrackets([&] { return Subscript(at, std::move(value)); }));
    } else if (AtOp("(")) {
      SLUICE_ASSIGN_OR_RETURN(value, Call(std::move(value)));
    } else {
      return value;
    }
  }
}

absl::StatusOr<ExprPtr> ExpressionParser::Subscript(int at, ExprPtr value) {
  ExprPtr parts[3];
  int colons = 0;
  while (!AtOp("]")) {
    if (TakeOp(":")) {
      if (++colons > 2) return Unexpected("]");
      continue;
    }
    if (parts[colons] != nullptr) return Unexpected("]");
    SLUICE_ASSIGN_OR_RETURN(parts[colons], Expression());
  }
  ++at_;
  if (colons > 0)
    return Make2(Expr::kSlice, at, "", std::move(value), std::move(parts[0]), std::move(parts[1]),
                 std::move(parts[2]));
  if (parts[0] == nullptr) return ErrorAt(at, "an empty subscript");
  return Make2(Expr::kItem, at, "", std::move(value), std::move(parts[0]));
}

absl::StatusOr<ExprPtr> ExpressionParser::Arguments(Expr::Kind kind, int at, std::string name,
                                                    ExprPtr subject) {
  return InBrackets([&]() -> absl::StatusOr<ExprPtr> {
    SLUICE_RETURN_IF_ERROR(ExpectOp("("));
    std::vector<ExprPtr> kids;
    std::vector<std::pair<std::string, ExprPtr>> named;
    int depth = 0;
    kids.push_back(std::move(subject));
    bool first = true;
    while (!TakeOp(")")) {
      if (!first) {
        SLUICE_RETURN_IF_ERROR(ExpectOp(","));
        if (TakeOp(")")) break;
      }
      first = false;
      if (AtOp("*") || AtOp("**")) return UnsupportedAt(line(), "an argument with *");
      if (peek().type == Token::kName && ahead().type == Token::kOperator && ahead().text == "=") {
        std::string key = Next().text;
        ++at_;
        SLUICE_ASSIGN_OR_RETURN(ExprPtr value, Expression());
        depth = std::max(depth, value->depth);
        named.emplace_back(std::move(key), std::move(value));
      } else {
        if (!named.empty()) return Unexpected("a named argument");
        SLUICE_ASSIGN_OR_RETURN(ExprPtr value, Expression());
        kids.push_back(std::move(value));
      }
    }
    SLUICE_ASSIGN_OR_RETURN(ExprPtr node, Make(kind, at, std::move(kids), std::move(name)));
    node->named = std::move(named);
    node->depth = std::max(node->depth, depth + 1);
    return node;
  });
}

absl::StatusOr<ExprPtr> ExpressionParser::Call(ExprPtr callee) {
  int at = line();
  return Arguments(Expr::kCall, at, "", std::move(callee));
}

absl::StatusOr<ExprPtr> ExpressionParser::Filters(ExprPtr value) {
  while (true) {
    int at = line();
    if (TakeOp("|")) {
      SLUICE_ASSIGN_OR_RETURN(std::string name, Name("a filter"));
      if (!IsFilter(name)) return UnsupportedAt(at, absl::StrCat("the filter ", name));
      SLUICE_ASSIGN_OR_RETURN(value, AtOp("(") ? Arguments(Expr::kFilter, at, name, std::move(value))
                                               : Make2(Expr::kFilter, at, name, std::move(value)));
    } else if (TakeName("is")) {
      SLUICE_ASSIGN_OR_RETURN(value, Test(at, std::move(value)));
    } else if (AtOp("(")) {
      SLUICE_ASSIGN_OR_RETURN(value, Call(std::move(value)));
    } else {
      return value;
    }
  }
}

absl::StatusOr<ExprPtr> ExpressionParser::Test(int at, ExprPtr value) {
  bool negated = TakeName("not");
  SLUICE_ASSIGN_OR_RETURN(std::string name, Name("a test"));
  if (!IsTest(name)) return UnsupportedAt(at, absl::StrCat("the test ", name));
  ExprPtr test;
  bool takes_argument =
      peek().type == Token::kString || peek().type == Token::kInt || peek().type == Token::kFloat ||
      AtOp("[") || AtOp("{") ||
      (peek().type == Token::kName && !AtNameOf({"else", "or", "and", "if", "in", "not", "is"}));
  if (AtOp("(")) {
    SLUICE_ASSIGN_OR_RETURN(test, Arguments(Expr::kTest, at, name, std::move(value)));
  } else if (takes_argument) {
    SLUICE_ASSIGN_OR_RETURN(ExprPtr argument, Primary());
    SLUICE_ASSIGN_OR_RETURN(argument, Postfix(std::move(argument)));
    SLUICE_ASSIGN_OR_RETURN(test, Make2(Expr::kTest, at, name, std::move(value), std::move(argument)));
  } else {
    SLUICE_ASSIGN_OR_RETURN(test, Make2(Expr::kTest, at, name, std::move(value)));
  }
  if (!negated) return test;
  return Make2(Expr::kNot, at, "", std::move(test));
}

}  // namespace sluice::jinja
