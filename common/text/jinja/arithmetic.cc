#include "common/text/jinja/arithmetic.h"

#include <cmath>

namespace sluice::jinja {
namespace {

absl::StatusOr<Value> IntResult(bool overflow, int64_t result) {
  if (overflow) return absl::InvalidArgumentError("an integer is too large");
  return Value(result);
}

absl::StatusOr<Value> IntPower(int64_t base, int64_t exponent) {
  if (exponent < 0) return Value(std::pow(static_cast<double>(base), static_cast<double>(exponent)));
  int64_t result = 1;
  for (; exponent > 0; exponent >>= 1) {
    if ((exponent & 1) && __builtin_mul_overflow(result, base, &result)) return IntResult(true, 0);
    if (exponent > 1 && __builtin_mul_overflow(base, base, &base)) return IntResult(true, 0);
  }
  return Value(result);
}

// Python's // and %: rounded to minus infinity.
absl::StatusOr<Value> IntDivide(const std::string& op, int64_t a, int64_t b) {
  if (b == 0) return absl::InvalidArgumentError("division by zero");
  if (op == "/") return Value(static_cast<double>(a) / static_cast<double>(b));
  if (b == -1) return op == "%" ? Value(int64_t{0}) : IntResult(a == INT64_MIN, a == INT64_MIN ? 0 : -a);
  int64_t quotient = a / b, rest = a % b;
  if (rest != 0 && (rest < 0) != (b < 0)) {
    --quotient;
    rest += b;
  }
  return Value(op == "//" ? quotient : rest);
}

}  // namespace

absl::StatusOr<Value> Arithmetic(const std::string& op, const Value& a, const Value& b) {
  if (!a.is_float() && !b.is_float()) {
    int64_t x = a.as_int(), y = b.as_int(), result = 0;
    bool overflow = false;
    if (op == "+") overflow = __builtin_add_overflow(x, y, &result);
    if (op == "-") overflow = __builtin_sub_overflow(x, y, &result);
    if (op == "*") overflow = __builtin_mul_overflow(x, y, &result);
    if (op == "+" || op == "-" || op == "*") return IntResult(overflow, result);
    if (op == "**") return IntPower(x, y);
    return IntDivide(op, x, y);
  }
  double x = a.as_double(), y = b.as_double();
  if (op == "+") return Value(x + y);
  if (op == "-") return Value(x - y);
  if (op == "*") return Value(x * y);
  if (op == "**") return Value(std::pow(x, y));
  if (y == 0) return absl::InvalidArgumentError("division by zero");
  if (op == "/") return Value(x / y);
  if (op == "//") return Value(std::floor(x / y));
  double rest = std::fmod(x, y);
  return Value(rest != 0 && (rest < 0) != (y < 0) ? rest + y : rest);
}

}  // namespace sluice::jinja
