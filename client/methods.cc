// sluice methods: the compression presets.
#include <algorithm>
#include <string>

#include "client/command.h"
#include "common/compression/compression_spec.h"

namespace sluice {

Command AddMethods(CLI::App* parent) {
  CLI::App* app = parent->add_subcommand("methods", "list the compression presets");
  app->footer("Example:\n  sluice chat --file report.txt --preset rocketkv-mt --budget 512");
  return {app, [](const Console& console) -> absl::StatusOr<int> {
            size_t width = 0;
            for (const Preset& preset : Presets()) width = std::max(width, std::string(preset.name).size());
            for (const Preset& preset : Presets()) {
              std::string name = preset.name;
              name.resize(width, ' ');
              *console.out << name << "  " << preset.summary << "\n";
            }
            *console.out << std::flush;
            return kExitOk;
          }};
}

}  // namespace sluice
