// Role: reads expressions out of a token stream, by Jinja's grammar and precedence. The statement parser
// builds on it. Threads: one parse, one owner.
#pragma once

#include <algorithm>
#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/text/jinja/ast.h"
#include "common/text/jinja/lexer.h"

namespace sluice::jinja {

// How deep the parser itself recurses, and how deep a tree may become (a + b + c grows one level a term).
inline constexpr int kMaxParseDepth = 100;
inline constexpr int kMaxTreeDepth = 200;

class ExpressionParser {
 protected:
  explicit ExpressionParser(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

  using Names = std::initializer_list<absl::string_view>;

  const Token& peek() const { return tokens_[at_]; }
  const Token& ahead() const { return tokens_[std::min(at_ + 1, tokens_.size() - 1)]; }
  Token Next() { return peek().type == Token::kEnd ? peek() : tokens_[at_++]; }
  bool AtOp(absl::string_view op) const { return peek().type == Token::kOperator && peek().text == op; }
  bool AtName(absl::string_view name) const { return peek().type == Token::kName && peek().text == name; }
  bool AtNameOf(Names names) const {
    return peek().type == Token::kName && std::find(names.begin(), names.end(), peek().text) != names.end();
  }
  bool TakeOp(absl::string_view op) { return AtOp(op) && (++at_, true); }
  bool TakeName(absl::string_view name) { return AtName(name) && (++at_, true); }
  void Skip() { ++at_; }
  int line() const { return peek().line; }

  absl::Status Unexpected(absl::string_view wanted) const {
    const Token& t = peek();
    std::string found = t.type == Token::kEnd ? "the end of the template"
                        : t.text.empty()      ? "the end of the tag"
                                              : absl::StrCat("\"", t.text, "\"");
    return ErrorAt(t.line, absl::StrCat("expected ", wanted, ", found ", found));
  }
  absl::Status ExpectOp(absl::string_view op) { return TakeOp(op) ? absl::OkStatus() : Unexpected(op); }
  absl::Status ExpectType(Token::Type type, absl::string_view what) {
    if (peek().type != type) return Unexpected(what);
    ++at_;
    return absl::OkStatus();
  }
  absl::Status EndOfBlock() { return ExpectType(Token::kBlockEnd, "%}"); }
  absl::StatusOr<std::string> Name(absl::string_view what) {
    if (peek().type != Token::kName) return Unexpected(what);
    return Next().text;
  }

  // Guards the recursion of the parser itself.
  struct Nest {
    explicit Nest(int* depth) : depth(depth) { ++*depth; }
    ~Nest() { --*depth; }
    int* depth;
  };

  // A node over its children; refuses trees too deep to walk.
  absl::StatusOr<ExprPtr> Make(Expr::Kind kind, int at, std::vector<ExprPtr> kids, std::string name = "") {
    auto node = std::make_unique<Expr>();
    node->kind = kind;
    node->line = at;
    node->name = std::move(name);
    node->kids = std::move(kids);
    for (const ExprPtr& kid : node->kids)
      if (kid != nullptr) node->depth = std::max(node->depth, kid->depth + 1);
    if (node->depth > kMaxTreeDepth) return ErrorAt(at, "an expression is nested too deeply");
    return node;
  }
  template <class... Kids>
  absl::StatusOr<ExprPtr> Make2(Expr::Kind kind, int at, std::string name, Kids... kids) {
    std::vector<ExprPtr> list;
    (list.push_back(std::move(kids)), ...);
    return Make(kind, at, std::move(list), std::move(name));
  }

  // a, b, c without parentheses is a tuple.
  absl::StatusOr<ExprPtr> TupleExpr();
  absl::StatusOr<ExprPtr> Expression();

  int depth_ = 0;           // of the parser's own recursion
  bool no_choice_ = false;  // the head of a loop is being read: an `if` there filters it

 private:
  // Inside brackets an `if` is a choice again, even in the head of a loop.
  template <class Parse>
  auto InBrackets(Parse parse) {
    bool outside = std::exchange(no_choice_, false);
    auto result = parse();
    no_choice_ = outside;
    return result;
  }

  template <class Operand>
  absl::StatusOr<ExprPtr> Chain(Names ops, Operand operand) {
    int at = line();
    SLUICE_ASSIGN_OR_RETURN(ExprPtr left, operand());
    while (peek().type == Token::kOperator && std::find(ops.begin(), ops.end(), peek().text) != ops.end()) {
      std::string op = Next().text;
      SLUICE_ASSIGN_OR_RETURN(ExprPtr right, operand());
      SLUICE_ASSIGN_OR_RETURN(left, Make2(Expr::kBinary, at, op, std::move(left), std::move(right)));
    }
    return left;
  }

  absl::StatusOr<ExprPtr> Or();
  absl::StatusOr<ExprPtr> And();
  absl::StatusOr<ExprPtr> Not();
  absl::StatusOr<ExprPtr> Compare();
  absl::StatusOr<ExprPtr> Sum();
  absl::StatusOr<ExprPtr> Concat();
  absl::StatusOr<ExprPtr> Product();
  absl::StatusOr<ExprPtr> Unary(bool with_filters);
  absl::StatusOr<ExprPtr> Constant(int at, Value value);
  absl::StatusOr<ExprPtr> Primary();
  absl::StatusOr<ExprPtr> Parenthesis(int at);
  absl::StatusOr<ExprPtr> ListItems(int at);
  absl::StatusOr<ExprPtr> DictItems(int at);
  absl::StatusOr<ExprPtr> Postfix(ExprPtr value);
  absl::StatusOr<ExprPtr> Subscript(int at, ExprPtr value);
  // (a, b, name=c); kids[0] is what is called.
  absl::StatusOr<ExprPtr> Arguments(Expr::Kind kind, int at, std::string name, ExprPtr subject);
  absl::StatusOr<ExprPtr> Call(ExprPtr callee);
  absl::StatusOr<ExprPtr> Filters(ExprPtr value);
  absl::StatusOr<ExprPtr> Test(int at, ExprPtr value);

  const std::vector<Token> tokens_;
  size_t at_ = 0;
};

}  // namespace sluice::jinja
