// sluice methods: the compression presets: their gates, and what each stores, sends and reads of a model's
// KV.
#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/command.h"
#include "client/flags.h"
#include "client/sampling_flags.h"
#include "client/up_plan.h"
#include "common/base/status.h"
#include "common/compression/compression_spec.h"
#include "common/compression/method_costs.h"
#include "common/model/gate_context.h"
#include "common/model/model_dir.h"

namespace sluice {
namespace {

constexpr int kDefaultPrompt = 16384;
constexpr int kAnswer = 128;  // tokens: m of the split

struct Options {
  std::string model;
  std::optional<int> tokens, budget;
  bool json = false;
};

// A model and a prompt.
struct Setting {
  ModelShape shape;
  int prompt_tokens = 0;
  KvShape kv() const {
    return {.n_layers = shape.n_layers,
            .n_q_heads = shape.n_q_heads,
            .n_kv_heads = shape.n_kv_heads,
            .head_dim = shape.head_dim};
  }
};

struct Method {
  const Preset* preset;
  ResolvedGates asked;  // kinds only
  MethodFormulas formulas;
  std::optional<MethodCosts> costs;  // none without a model, or where it is refused
  std::string note;                  // what is off or refused, and why
};

absl::StatusOr<std::optional<Setting>> SettingOf(const Options& options) {
  if (options.model.empty()) return std::optional<Setting>();
  SLUICE_ASSIGN_OR_RETURN(ModelShape shape, OpenShape(options.model));
  const int most = shape.context - kAnswer;
  Setting setting;
  setting.prompt_tokens = options.tokens.value_or(std::min(kDefaultPrompt, most));
  if (setting.prompt_tokens > most) {
    return absl::InvalidArgumentError(absl::StrCat("--tokens ", setting.prompt_tokens, ": the context of ",
                                                   shape.context, " holds ", most, " and an answer of ",
                                                   kAnswer));
  }
  setting.shape = std::move(shape);
  return std::optional<Setting>(std::move(setting));
}

Method Describe(const Preset& preset, const std::optional<Setting>& setting, std::optional<int> budget) {
  Method method;
  method.preset = &preset;
  method.asked = KindsOf(preset.spec);
  method.formulas = FormulasOf(method.asked);
  if (!setting) return method;
  CompressionSpec spec;
  spec.preset = preset.name;
  spec.budget_tokens = budget;
  const auto gates =
      ResolveGates(spec, GateContextOf(setting->shape, setting->prompt_tokens, kAnswer), nullptr);
  if (!gates.ok()) {
    method.note = std::string(gates.status().message());
    return method;
  }
  method.costs = CostsOf(*gates, setting->kv(), setting->prompt_tokens);
  method.note = gates->off_reason;
  return method;
}

std::string Megabytes(double bytes) { return absl::StrFormat("%.1f", bytes / 1e6); }

std::string Title(const Setting& setting, int budget) {
  return absl::StrFormat("%s, a prompt of %d tokens, budget %d: %s MB of K,V", setting.shape.name,
                         setting.prompt_tokens, budget,
                         Megabytes(static_cast<double>(setting.kv().token_bytes()) * setting.prompt_tokens));
}

void PrintTable(const std::vector<Method>& methods, const std::optional<Setting>& setting, int budget,
                std::ostream& out) {
  if (setting) {
    out << Title(*setting, budget) << "\n\n"
        << absl::StrFormat("%-13s %9s %11s %11s %11s %13s\n", "preset", "prefill %", "kept a head",
                           "stored MB", "sent MB", "read MB a step");
    for (const Method& method : methods) {
      if (!method.costs) {
        out << absl::StrFormat("%-13s %9s %11s %11s %11s %13s\n", method.preset->name, "-", "-", "-", "-",
                               "-");
        continue;
      }
      const MethodCosts& costs = *method.costs;
      out << absl::StrFormat("%-13s %9.1f %11.0f %11s %11s %13s\n", method.preset->name,
                             100 * costs.prefill_share, costs.kept_rows, Megabytes(costs.stored_bytes),
                             Megabytes(costs.wire_bytes), Megabytes(costs.read_bytes));
    }
    out << "\n";
  } else {
    out << "name a model with --model to see bytes\n\n";
  }
  out << absl::StrFormat("%-13s %-7s %-14s %-10s %-7s %s\n", "preset", "rows on", "kept", "read", "history",
                         "");
  for (const Method& method : methods) {
    const ResolvedGates& gates = method.asked;
    out << absl::StrFormat("%-13s %-7s %-14s %-10s %-7s %s\n", method.preset->name,
                           NameOf(gates.propagation.kind), NameOf(gates.retention.kind),
                           NameOf(gates.selection.kind), NameOf(gates.history), method.preset->summary);
  }
  out << "\nformulas, in rows of K,V of a layer and KV head; n prompt, t budget, g generated, m answer "
         "(at most 128),\nL layers, D head_dim:\n";
  for (const Method& method : methods) {
    const MethodFormulas& f = method.formulas;
    out << absl::StrFormat("%-13s prefill %s; kept and sent %s; stored %s; read %s\n", method.preset->name,
                           f.prefill, f.kept, f.stored, f.read);
  }
  for (const Method& method : methods)
    if (!method.note.empty()) out << "\n" << method.preset->name << ": " << method.note << "\n";
}

nlohmann::ordered_json MethodJson(const Method& method) {
  const ResolvedGates& gates = method.asked;
  const MethodFormulas& formulas = method.formulas;
  nlohmann::ordered_json json = {{"preset", method.preset->name},
                                 {"summary", method.preset->summary},
                                 {"propagation", NameOf(gates.propagation.kind)},
                                 {"retention", NameOf(gates.retention.kind)},
                                 {"selection", NameOf(gates.selection.kind)},
                                 {"history", NameOf(gates.history)},
                                 {"formulas",
                                  {{"prefill_share", formulas.prefill},
                                   {"kept_rows", formulas.kept},
                                   {"stored_rows", formulas.stored},
                                   {"read_rows", formulas.read}}}};
  if (method.costs) {
    const MethodCosts& costs = *method.costs;
    json["prefill_share"] = costs.prefill_share;
    json["kept_rows"] = costs.kept_rows;
    json["stored_bytes"] = costs.stored_bytes;
    json["wire_bytes"] = costs.wire_bytes;
    json["read_bytes"] = costs.read_bytes;
  }
  json["note"] = method.note;
  return json;
}

void PrintJson(const std::vector<Method>& methods, const std::optional<Setting>& setting, int budget,
               std::ostream& out) {
  nlohmann::ordered_json json = nlohmann::ordered_json::object();
  if (setting) {
    json["model"] = setting->shape.name;
    json["prompt_tokens"] = setting->prompt_tokens;
    json["budget_tokens"] = budget;
    json["kv_bytes"] = static_cast<uint64_t>(setting->kv().token_bytes()) * setting->prompt_tokens;
  }
  json["methods"] = nlohmann::ordered_json::array();
  for (const Method& method : methods) json["methods"].push_back(MethodJson(method));
  out << json.dump() << "\n";
}

}  // namespace

Command AddMethods(CLI::App* parent) {
  CLI::App* app = parent->add_subcommand("methods", "the compression presets, and what each saves");
  auto options = std::make_shared<Options>();
  options->model = DefaultModel();
  AddFlag(app, "--model", options->model, "Hugging Face directory or GGUF file", "SLUICE_MODEL", "Costs");
  AddOptionalFlag(app, "--tokens", options->tokens,
                  "length of the prompt [tokens] (default 16384, or what the context holds)", "SLUICE_TOKENS",
                  "Costs")
      ->check(CLI::Range(1, 1 << 24));
  AddBudgetFlag(app, &options->budget);
  app->add_flag("--json", options->json, "one JSON object instead of tables");
  app->footer(
      "Bytes follow from the gates' numbers, over all layers and KV heads; what a request really stored and "
      "sent is\n"
      "in its reply.\n"
      "Examples:\n"
      "  sluice methods --model models/needle-14m --tokens 30000 --budget 512\n"
      "  sluice chat --file report.txt --preset rocketkv-mt --budget 512");
  return {app, [options](const Console& console) -> absl::StatusOr<int> {
            SLUICE_ASSIGN_OR_RETURN(const std::optional<Setting> setting, SettingOf(*options));
            std::vector<Method> methods;
            for (const Preset& preset : Presets())
              methods.push_back(Describe(preset, setting, options->budget));
            const int budget = options->budget.value_or(kDefaultBudgetTokens);
            options->json ? PrintJson(methods, setting, budget, *console.out)
                          : PrintTable(methods, setting, budget, *console.out);
            *console.out << std::flush;
            return kExitOk;
          }};
}

}  // namespace sluice
