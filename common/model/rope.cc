#include "common/model/rope.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace sluice {
namespace {

// theta^(2i / head_dim)
std::vector<float> PositionFrequencies(double theta, int head_dim) {
  std::vector<float> out(head_dim / 2);
  for (int i = 0; i < head_dim / 2; ++i)
    out[i] = std::pow(static_cast<float>(theta), static_cast<float>(2 * i) / static_cast<float>(head_dim));
  return out;
}

float Llama3Frequency(const RopeSpec& spec, float freq) {
  auto factor = static_cast<float>(spec.factor);
  auto low_wavelength = static_cast<float>(spec.original_context / spec.low_freq_factor);
  auto high_wavelength = static_cast<float>(spec.original_context / spec.high_freq_factor);
  float wavelength = static_cast<float>(2 * std::numbers::pi) / freq;
  if (wavelength > low_wavelength) return freq / factor;
  if (wavelength < high_wavelength) return freq;
  float smooth =
      (static_cast<float>(spec.original_context) / wavelength - static_cast<float>(spec.low_freq_factor)) /
      static_cast<float>(spec.high_freq_factor - spec.low_freq_factor);
  return (1 - smooth) * freq / factor + smooth * freq;
}

// The (fractional) pair that turns `rotations` times over the original context.
double YarnCorrectionDim(const RopeSpec& spec, double rotations, int head_dim) {
  return head_dim * std::log(spec.original_context / (rotations * 2 * std::numbers::pi)) /
         (2 * std::log(spec.theta));
}

std::vector<float> YarnFrequencies(const RopeSpec& spec, int head_dim) {
  double low = YarnCorrectionDim(spec, spec.beta_fast, head_dim);
  double high = YarnCorrectionDim(spec, spec.beta_slow, head_dim);
  if (spec.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, head_dim - 1.0);
  if (low == high) high += 0.001;

  std::vector<float> out = PositionFrequencies(spec.theta, head_dim);
  for (int i = 0; i < head_dim / 2; ++i) {
    float extrapolated = 1.0f / out[i];
    float interpolated = 1.0f / (static_cast<float>(spec.factor) * out[i]);
    float ramp = (static_cast<float>(i) - static_cast<float>(low)) / static_cast<float>(high - low);
    float keep = 1 - std::clamp(ramp, 0.0f, 1.0f);
    out[i] = interpolated * (1 - keep) + extrapolated * keep;
  }
  return out;
}

double YarnMscale(double scale, double mscale) { return scale <= 1 ? 1 : 0.1 * mscale * std::log(scale) + 1; }

}  // namespace

std::vector<float> InverseFrequencies(const RopeSpec& spec, int head_dim) {
  if (spec.kind == RopeKind::kYarn) return YarnFrequencies(spec, head_dim);
  std::vector<float> out = PositionFrequencies(spec.theta, head_dim);
  for (float& f : out) {
    f = 1.0f / f;
    if (spec.kind == RopeKind::kLinear) f /= static_cast<float>(spec.factor);
    if (spec.kind == RopeKind::kLlama3) f = Llama3Frequency(spec, f);
  }
  return out;
}

float RopeAttentionScale(const RopeSpec& spec) {
  if (spec.kind != RopeKind::kYarn) return 1;
  if (spec.attention_factor) return static_cast<float>(*spec.attention_factor);
  if (spec.mscale && spec.mscale_all_dim && *spec.mscale != 0 && *spec.mscale_all_dim != 0)
    return static_cast<float>(YarnMscale(spec.factor, *spec.mscale) /
                              YarnMscale(spec.factor, *spec.mscale_all_dim));
  return static_cast<float>(YarnMscale(spec.factor, 1));
}

}  // namespace sluice
