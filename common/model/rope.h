// Role: inverse frequencies of rotary positions under each supported context-extension rule.
// Why: the rules differ between files and formats but end in one vector and one factor; they are computed
// once, in f32 where Transformers uses f32 and in double where it uses Python numbers, because long prompts
// show the difference. Threads: pure functions.
#pragma once

#include <optional>
#include <vector>

namespace sluice {

enum class RopeKind {
  kPlain,
  kLinear,  // positions divided by factor
  kLlama3,  // Llama 3.1: long wavelengths divided, short ones kept, a ramp between
  kYarn,    // YaRN (arXiv 2309.00071), "NTK by parts" with its attention factor
};

struct RopeSpec {
  RopeKind kind = RopeKind::kPlain;
  double theta = 10000;
  double factor = 1;
  double original_context = 0;                   // llama3, yarn
  double low_freq_factor = 1;                    // llama3
  double high_freq_factor = 4;                   // llama3
  double beta_fast = 32;                         // yarn
  double beta_slow = 1;                          // yarn
  bool truncate = true;                          // yarn: whole dimensions as ends of the ramp
  std::optional<double> attention_factor;        // yarn; else from factor, mscale, mscale_all_dim
  std::optional<double> mscale, mscale_all_dim;  // yarn, used only as a pair
};

std::vector<float> InverseFrequencies(const RopeSpec& spec, int head_dim);
float RopeAttentionScale(const RopeSpec& spec);

}  // namespace sluice
