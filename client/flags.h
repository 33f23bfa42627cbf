// Role: one way to add an option: default shown, SLUICE_ environment name, group. Threads: pure function.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace sluice {

template <class T>
CLI::Option* AddFlag(CLI::App* app, const char* name, T& value, const std::string& help, const char* env,
                     const char* group) {
  return app->add_option(name, value, help)->envname(env)->group(group)->capture_default_str();
}

// As AddFlag, for a value with no default of ours.
template <class T>
CLI::Option* AddOptionalFlag(CLI::App* app, const char* name, T& value, const std::string& help,
                             const char* env, const char* group) {
  return app->add_option(name, value, help)->envname(env)->group(group);
}

}  // namespace sluice
