#include "common/rpc/process_flags.h"

#include <algorithm>
#include <cstdlib>
#include <iostream>
#include <iterator>
#include <memory>
#include <sstream>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace sluice {
namespace {

constexpr size_t kTextColumns = 110;

// TOML of which a process reads what stands before the first section, and the section of its name. What the
// environment says is left out of it: CLI11 asks the environment only for what no file gave.
class SectionedToml final : public CLI::ConfigTOML {
 public:
  explicit SectionedToml(const CLI::App* app) : app_(*app) {}

  std::vector<CLI::ConfigItem> from_config(std::istream& input) const override {
    std::stringstream common, own;
    std::stringstream* to = &common;
    for (std::string line; std::getline(input, line);) {
      const absl::string_view text = absl::StripAsciiWhitespace(line);
      // A line of a list begins with a bracket, too, but ends with a comma or holds one.
      if (absl::StartsWith(text, "[") && absl::EndsWith(text, "]") && !absl::StrContains(text, ',')) {
        to = text == absl::StrCat("[", app_.get_name(), "]") ? &own : nullptr;
      } else if (to != nullptr) {
        *to << line << '\n';
      }
    }
    std::vector<CLI::ConfigItem> items = CLI::ConfigTOML::from_config(common);
    for (CLI::ConfigItem& item : CLI::ConfigTOML::from_config(own)) {
      items.erase(std::remove_if(items.begin(), items.end(),
                                 [&](const CLI::ConfigItem& other) { return other.name == item.name; }),
                  items.end());
      items.push_back(std::move(item));
    }
    items.erase(std::remove_if(items.begin(), items.end(),
                               [this](const CLI::ConfigItem& item) { return InEnvironment(item.name); }),
                items.end());
    return items;
  }

 private:
  bool InEnvironment(const std::string& name) const {
    const CLI::Option* option = app_.get_option_no_throw("--" + name);
    return option != nullptr && !option->get_envname().empty() &&
           getenv(option->get_envname().c_str()) != nullptr;
  }

  const CLI::App& app_;
};

// `text` as comment lines.
std::string Comment(absl::string_view text) {
  std::string out, line = "#";
  for (absl::string_view word : absl::StrSplit(text, ' ')) {
    if (line.size() + 1 + word.size() > kTextColumns) absl::StrAppend(&out, std::exchange(line, "#"), "\n");
    absl::StrAppend(&line, " ", word);
  }
  return absl::StrCat(out, line, "\n");
}

// A default as CLI11 keeps it, [a,b] for a list.
std::vector<std::string> DefaultOf(const CLI::Option& option) {
  const std::string text = option.get_default_str();
  if (text.empty() && option.get_expected_min() == 0) return {"false"};  // a flag
  absl::string_view list = text;
  if (!absl::ConsumePrefix(&list, "[")) return {text};
  return absl::StrSplit(absl::StripSuffix(list, "]"), ',');
}

}  // namespace

void AddProcessFlags(CLI::App* app, std::string* log_level) {
  app->config_formatter(std::make_shared<SectionedToml>(app));
  app->set_config(
         "--config", "",
         absl::StrCat("TOML file with the options below, for every process before its first section, "
                      "for this one in [",
                      app->get_name(), "]; flags and environment go before it"))
      ->envname("SLUICE_CONFIG");
  app->allow_config_extras(CLI::config_extras_mode::error);
  app->add_option("--log-level", *log_level, "trace, debug, info, warn, error")
      ->envname("SLUICE_LOG_LEVEL")
      ->group("Logs")
      ->capture_default_str()
      ->check(CLI::IsMember({"trace", "debug", "info", "warn", "error"}));
}

std::optional<int> ParseFlags(CLI::App* app, int argc, const char* const* argv) {
  // Behind all others, which are checked in this order, and before what is required is missed.
  app->add_flag_callback(
         "--print-config",
         [app] {
           std::cout << ConfigText(*app) << std::flush;
           throw CLI::Success();
         },
         "print every option as it stands, as this process's section of a --config file, and exit")
      ->configurable(false);
  std::vector<std::string> arguments(argv + 1, argv + argc);
  const bool given = std::any_of(arguments.begin(), arguments.end(), [](const std::string& argument) {
    return argument == "--config" || absl::StartsWith(argument, "--config=");
  });
  // CLI11 reads the file before it asks the environment for its name.
  const char* const file = getenv("SLUICE_CONFIG");
  if (!given && file != nullptr && *file != '\0') arguments.insert(arguments.begin(), {"--config", file});
  std::reverse(arguments.begin(), arguments.end());  // CLI11 takes them so
  try {
    app->parse(std::move(arguments));
  } catch (const CLI::ParseError& error) {
    return app->exit(error) == 0 ? 0 : 2;
  }
  return std::nullopt;
}

std::string ConfigText(const CLI::App& app) {
  std::string text = absl::StrCat("[", app.get_name(), "]\n");
  for (const std::string& group : app.get_groups()) {
    const std::vector<const CLI::Option*> options = app.get_options([&group](const CLI::Option* option) {
      return option->get_group() == group && option->get_configurable() && !option->get_lnames().empty();
    });
    if (options.empty()) continue;
    absl::StrAppend(&text, "\n# ---- ", group, "\n");
    for (const CLI::Option* option : options) {
      const std::vector<std::string> values = option->count() > 0 ? option->results() : DefaultOf(*option);
      std::vector<std::string> notes;
      if (!option->get_envname().empty()) notes.push_back(option->get_envname());
      if (option->get_required()) notes.push_back("required");
      const std::string note = notes.empty() ? "" : absl::StrCat(" (", absl::StrJoin(notes, "; "), ")");
      absl::StrAppend(&text, "\n", Comment(absl::StrCat(option->get_description(), note)),
                      option->count() > 0 ? "" : "# ", option->get_lnames()[0], " = ",
                      CLI::detail::ini_join(values), "\n");
    }
  }
  return text;
}

}  // namespace sluice
