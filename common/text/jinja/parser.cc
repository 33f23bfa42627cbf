#include "common/text/jinja/parser.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/text/jinja/expression_parser.h"

namespace sluice::jinja {
namespace {

class Parser : private ExpressionParser {
 public:
  explicit Parser(std::vector<Token> tokens) : ExpressionParser(std::move(tokens)) {}

  absl::StatusOr<Body> Template() { return Statements({}); }

 private:
  // Statements until a block tag named in `ends`, whose name stays unread. Empty: until the end of the
  // template.
  absl::StatusOr<Body> Statements(Names ends) {
    Nest nest(&depth_);
    if (depth_ > kMaxParseDepth) return ErrorAt(line(), "statements are nested too deeply");
    Body body;
    while (true) {
      int at = line();
      switch (peek().type) {
        case Token::kEnd:
          if (ends.size() > 0) return ErrorAt(at, absl::StrCat("{% ", *(ends.end() - 1), " %} is missing"));
          return body;
        case Token::kText: {
          auto text = NewStmt(Stmt::kText, at);
          text->text = Next().text;
          body.push_back(std::move(text));
          break;
        }
        case Token::kOutputBegin: {
          Skip();
          auto output = NewStmt(Stmt::kOutput, at);
          SLUICE_ASSIGN_OR_RETURN(output->expr, TupleExpr());
          SLUICE_RETURN_IF_ERROR(ExpectType(Token::kOutputEnd, "}}"));
          body.push_back(std::move(output));
          break;
        }
        case Token::kBlockBegin: {
          Skip();
          if (AtNameOf(ends)) return body;
          SLUICE_ASSIGN_OR_RETURN(auto statement, Statement());
          body.push_back(std::move(statement));
          break;
        }
        default:
          return Unexpected("text or a tag");
      }
    }
  }

  static std::unique_ptr<Stmt> NewStmt(Stmt::Kind kind, int at) {
    auto statement = std::make_unique<Stmt>();
    statement->kind = kind;
    statement->line = at;
    return statement;
  }

  absl::StatusOr<std::unique_ptr<Stmt>> Statement() {
    int at = line();
    SLUICE_ASSIGN_OR_RETURN(std::string name, Name("the name of a statement"));
    if (name == "if") return If(at);
    if (name == "for") return For(at);
    if (name == "set") return Set(at);
    if (name == "macro") return Macro(at);
    if (name == "break" || name == "continue") {
      if (loops_ == 0) return ErrorAt(at, absl::StrCat(name, " outside of a loop"));
      SLUICE_RETURN_IF_ERROR(EndOfBlock());
      return NewStmt(name == "break" ? Stmt::kBreak : Stmt::kContinue, at);
    }
    if (name == "generation") {  // Transformers' mark of what the assistant said; it prints its body
      SLUICE_RETURN_IF_ERROR(EndOfBlock());
      auto scope = NewStmt(Stmt::kScope, at);
      SLUICE_ASSIGN_OR_RETURN(scope->body, BodyUntil("endgeneration"));
      return scope;
    }
    return UnsupportedAt(at, absl::StrCat("{% ", name, " %}"));
  }

  absl::StatusOr<Body> BodyUntil(absl::string_view end) {
    SLUICE_ASSIGN_OR_RETURN(Body body, Statements({end}));
    Skip();
    SLUICE_RETURN_IF_ERROR(EndOfBlock());
    return body;
  }

  absl::StatusOr<std::unique_ptr<Stmt>> If(int at) {
    auto first = NewStmt(Stmt::kIf, at);
    Stmt* current = first.get();
    int branches = 0;
    while (true) {
      SLUICE_ASSIGN_OR_RETURN(current->expr, TupleExpr());
      SLUICE_RETURN_IF_ERROR(EndOfBlock());
      SLUICE_ASSIGN_OR_RETURN(current->body, Statements({"elif", "else", "endif"}));
      int here = line();
      std::string tag = Next().text;
      if (tag == "elif") {
        // A chain hangs in `otherwise`, one below the other.
        if (++branches + depth_ > kMaxParseDepth) return ErrorAt(here, "too many {% elif %}");
        current->otherwise.push_back(NewStmt(Stmt::kIf, here));
        current = current->otherwise.back().get();
        continue;
      }
      SLUICE_RETURN_IF_ERROR(EndOfBlock());
      if (tag == "else") {
        SLUICE_ASSIGN_OR_RETURN(current->otherwise, BodyUntil("endif"));
      }
      return first;
    }
  }

  absl::StatusOr<std::vector<std::string>> Targets() {
    std::vector<std::string> names;
    bool parenthesis = TakeOp("(");
    do {
      if (!names.empty() && peek().type != Token::kName) break;  // a trailing comma
      SLUICE_ASSIGN_OR_RETURN(std::string name, Name("a name to assign to"));
      names.push_back(std::move(name));
    } while (TakeOp(","));
    if (parenthesis) SLUICE_RETURN_IF_ERROR(ExpectOp(")"));
    return names;
  }

  absl::StatusOr<std::unique_ptr<Stmt>> For(int at) {
    auto loop = NewStmt(Stmt::kFor, at);
    SLUICE_ASSIGN_OR_RETURN(loop->targets, Targets());
    if (!TakeName("in")) return Unexpected("in");
    no_choice_ = true;  // an `if` here filters the loop
    absl::StatusOr<ExprPtr> items = TupleExpr();
    no_choice_ = false;
    if (!items.ok()) return items.status();
    loop->expr = *std::move(items);
    if (TakeName("if")) {
      SLUICE_ASSIGN_OR_RETURN(loop->condition, Expression());
    }
    if (AtName("recursive")) return UnsupportedAt(at, "a recursive loop");
    SLUICE_RETURN_IF_ERROR(EndOfBlock());
    ++loops_;
    absl::StatusOr<Body> body = Statements({"else", "endfor"});
    --loops_;
    if (!body.ok()) return body.status();
    loop->body = *std::move(body);
    bool has_else = Next().text == "else";
    SLUICE_RETURN_IF_ERROR(EndOfBlock());
    if (has_else) {
      SLUICE_ASSIGN_OR_RETURN(loop->otherwise, BodyUntil("endfor"));
    }
    return loop;
  }

  absl::StatusOr<std::unique_ptr<Stmt>> Set(int at) {
    auto set = NewStmt(Stmt::kSet, at);
    SLUICE_ASSIGN_OR_RETURN(set->targets, Targets());
    if (set->targets.size() == 1 && TakeOp(".")) {
      SLUICE_ASSIGN_OR_RETURN(set->field, Name("a field name"));
    }
    if (TakeOp("=")) {
      SLUICE_ASSIGN_OR_RETURN(set->expr, TupleExpr());
      SLUICE_RETURN_IF_ERROR(EndOfBlock());
      return set;
    }
    if (AtOp("|")) return UnsupportedAt(at, "{% set %} with a filter over a block");
    if (set->targets.size() != 1 || !set->field.empty()) return Unexpected("=");
    SLUICE_RETURN_IF_ERROR(EndOfBlock());
    set->kind = Stmt::kSetBlock;
    SLUICE_ASSIGN_OR_RETURN(set->body, BodyUntil("endset"));
    return set;
  }

  absl::StatusOr<std::unique_ptr<Stmt>> Macro(int at) {
    // Elsewhere it would see variables of its place, which end before it is called.
    if (loops_ > 0 || in_macro_) return UnsupportedAt(at, "a macro inside a loop or a macro");
    auto macro = NewStmt(Stmt::kMacro, at);
    SLUICE_ASSIGN_OR_RETURN(macro->text, Name("the name of the macro"));
    SLUICE_RETURN_IF_ERROR(ExpectOp("("));
    while (!TakeOp(")")) {
      if (!macro->targets.empty()) SLUICE_RETURN_IF_ERROR(ExpectOp(","));
      SLUICE_ASSIGN_OR_RETURN(std::string name, Name("a parameter"));
      macro->targets.push_back(std::move(name));
      macro->defaults.emplace_back();
      if (TakeOp("=")) {
        SLUICE_ASSIGN_OR_RETURN(macro->defaults.back(), Expression());
      }
    }
    SLUICE_RETURN_IF_ERROR(EndOfBlock());
    in_macro_ = true;
    absl::StatusOr<Body> body = BodyUntil("endmacro");
    in_macro_ = false;
    if (!body.ok()) return body.status();
    macro->body = *std::move(body);
    return macro;
  }

  int loops_ = 0;
  bool in_macro_ = false;
};

}  // namespace

absl::StatusOr<Body> Parse(absl::string_view source) {
  SLUICE_ASSIGN_OR_RETURN(std::vector<Token> tokens, Tokenize(source));
  return Parser(std::move(tokens)).Template();
}

}  // namespace sluice::jinja
