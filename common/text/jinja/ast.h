// Role: the parsed template. Immutable once parsed; rendered from any thread.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/text/jinja/value.h"

namespace sluice::jinja {

struct Expr;
struct Stmt;
using ExprPtr = std::unique_ptr<Expr>;
using Body = std::vector<std::unique_ptr<Stmt>>;

struct Expr {
  enum Kind {
    kConst,      // value
    kName,       // name
    kList,       // kids
    kTuple,      // kids
    kDict,       // kids: key, value, key, value …
    kNot,        // kids[0]
    kNegate,     // kids[0]
    kPlus,       // kids[0], unary
    kAnd,        // kids[0], kids[1]
    kOr,         // kids[0], kids[1]
    kBinary,     // kids[0] name kids[1]; name: + - * / // % **
    kCompare,    // kids[0] ops[0] kids[1] ops[1] kids[2] …
    kConcat,     // kids, by ~
    kChoice,     // kids[0] if kids[1] else kids[2] (may be missing)
    kAttribute,  // kids[0].name
    kItem,       // kids[0][kids[1]]
    kSlice,      // kids[0][kids[1]:kids[2]:kids[3]], each may be null
    kCall,       // kids[0](kids[1…], named)
    kFilter,     // kids[0] | name(kids[1…], named)
    kTest,       // kids[0] is name(kids[1…])
  };
  Kind kind;
  int line;
  std::string name;
  std::vector<ExprPtr> kids;
  std::vector<std::pair<std::string, ExprPtr>> named;
  std::vector<std::string> ops;
  Value value;
  int depth = 1;
};

struct Stmt {
  enum Kind {
    kText,      // text
    kOutput,    // expr
    kIf,        // expr, body, otherwise
    kFor,       // targets in expr [if condition]; body; otherwise: nothing was left to loop over
    kSet,       // targets = expr (one target with `field`: target.field = expr)
    kSetBlock,  // targets[0] = rendered body
    kMacro,     // text(targets = defaults): body
    kBreak,
    kContinue,
    kScope,  // body
  };
  Kind kind;
  int line;
  std::string text, field;
  ExprPtr expr, condition;
  std::vector<std::string> targets;
  std::vector<ExprPtr> defaults;  // of a macro: null where there is none
  Body body, otherwise;
};

}  // namespace sluice::jinja
