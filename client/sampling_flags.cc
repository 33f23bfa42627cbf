#include "client/sampling_flags.h"

#include "client/real_range.h"
#include "common/compression/compression_spec.h"

namespace sluice {

std::vector<std::string> PresetNames() {
  std::vector<std::string> names;
  for (const Preset& preset : Presets()) names.push_back(preset.name);
  return names;
}

void AddBudgetFlag(CLI::App* app, std::optional<int>* budget) {
  AddOptionalFlag(app, "--budget", *budget,
                  "KV rows of a head: kept, or read at a step where the preset reads sparsely [tokens]",
                  "SLUICE_BUDGET", "Compression")
      ->check(CLI::Range(kMinBudgetTokens, 1 << 24));
}

void AddSamplingFlags(CLI::App* app, SamplingFlags* flags) {
  AddOptionalFlag(app, "--preset", flags->preset, "compression preset; see: sluice methods", "SLUICE_PRESET",
                  "Compression")
      ->check(CLI::IsMember(PresetNames()));
  AddBudgetFlag(app, &flags->budget);
  AddFlag(app, "--max-tokens", flags->max_tokens, "longest answer [tokens]", "SLUICE_MAX_TOKENS", "Sampling")
      ->check(CLI::Range(1, 1 << 24));
  AddFlag(app, "--temperature", flags->temperature,
          "0 to 2. 0 is greedy: the likeliest answer, and the same one again", "SLUICE_TEMPERATURE",
          "Sampling")
      ->check(RealRange(0, 2));
  AddOptionalFlag(app, "--top-p", flags->top_p, "sample from the likeliest tokens of this mass, (0, 1]",
                  "SLUICE_TOP_P", "Sampling")
      ->check(RealRange(1e-6, 1));
  AddOptionalFlag(app, "--top-k", flags->top_k, "sample from so many tokens; 0 is off", "SLUICE_TOP_K",
                  "Sampling")
      ->check(CLI::Range(0, 1 << 24));
  AddOptionalFlag(app, "--seed", flags->seed, "of sampling", "SLUICE_SEED", "Sampling")->check(SeedRange());
  app->add_option("--stop", flags->stop, "text that ends the answer; repeatable, at most 16")
      ->group("Sampling")
      ->allow_extra_args(false);
}

CLI::Validator SeedRange() {
  return CLI::Validator(
      [](std::string& text) {
        return text.find('-') == std::string::npos ? std::string() : "want 0 or more, got " + text;
      },
      "");
}

void FillRequest(const SamplingFlags& flags, v1::Sampling* sampling, v1::Stopping* stopping,
                 v1::CompressionSpec* compression) {
  if (flags.preset) compression->set_preset(*flags.preset);
  if (flags.budget) compression->set_budget_tokens(*flags.budget);
  stopping->set_max_tokens(flags.max_tokens);
  for (const std::string& stop : flags.stop) stopping->add_stop(stop);
  sampling->set_temperature(flags.temperature);
  if (flags.top_p) sampling->set_top_p(*flags.top_p);
  if (flags.top_k) sampling->set_top_k(*flags.top_k);
  if (flags.seed) sampling->set_seed(*flags.seed);
}

}  // namespace sluice
