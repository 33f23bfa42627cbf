#include "common/metrics/buckets.h"

#include <cmath>

namespace sluice::buckets {
namespace {

// 1, 2.5, 5 times each power of ten from 10^first_exponent on, without what lies below `from` or not below
// `to`; then `to` itself.
std::vector<double> Series125(int first_exponent, double from, double to) {
  std::vector<double> bounds;
  for (int exponent = first_exponent;; ++exponent) {
    // 10^|exponent| is exact, so one rounding gives the nearest double.
    const double power = std::pow(10.0, std::abs(exponent));
    for (double digit : {1.0, 2.5, 5.0}) {
      const double bound = exponent < 0 ? digit / power : digit * power;
      if (bound >= to) {
        bounds.push_back(to);
        return bounds;
      }
      if (bound >= from) bounds.push_back(bound);
    }
  }
}

std::vector<double> Powers(double first, double factor, double last) {
  std::vector<double> bounds;
  for (double bound = first; bound <= last; bound *= factor) bounds.push_back(bound);
  return bounds;
}

}  // namespace

std::vector<double> FirstToken() {
  return {.001, .005, .01, .02, .04, .06, .08, .1, .25, .5, .75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160};
}

std::vector<double> InterToken() {
  return {.0005, .001, .0025, .005, .0075, .01, .015, .02, .03, .05, .075, .1, .15, .2, .3, .5, 1, 2.5};
}

std::vector<double> Request() {
  return {.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 20, 30, 60, 120, 240, 480, 960};
}

std::vector<double> Queue() { return Series125(-4, .0005, 60); }
std::vector<double> KvTransfer() { return Series125(-5, .00005, 10); }
std::vector<double> Step() { return Series125(-4, .0005, 10); }
std::vector<double> Compression() { return Series125(-5, .00005, 10); }
std::vector<double> Tokens() { return Powers(1, 4, 262144); }
std::vector<double> KvTransferSize() { return Powers(4096, 4, 64.0 * (1 << 30)); }
std::vector<double> BatchSize() { return Powers(1, 2, 1024); }

std::vector<double> Ratio() {
  std::vector<double> bounds;
  for (int step = 1; step <= 20; ++step) bounds.push_back(step / 20.0);
  return bounds;
}

}  // namespace sluice::buckets
