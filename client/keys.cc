// sluice keys: the file of API keys of a router: create, list, revoke.
#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "client/command.h"
#include "client/flags.h"
#include "common/auth/api_keys.h"
#include "common/base/file_lock.h"
#include "common/base/status.h"

namespace sluice {
namespace {

struct Options {
  std::string file = "sluice-keys.json";
  ApiKey key;
  std::string id;
};

using Run = absl::StatusOr<int> (*)(const Options&, const Console&);

absl::StatusOr<std::vector<ApiKey>> Read(const std::string& file) {
  absl::StatusOr<std::vector<ApiKey>> keys = ReadApiKeys(file);
  if (keys.ok()) return keys;
  return absl::Status(keys.status().code(), absl::StrCat("--file ", keys.status().message()));
}

absl::StatusOr<int> Create(const Options& options, const Console& console) {
  SLUICE_RETURN_IF_ERROR(CheckOwner(options.key.owner));
  SLUICE_ASSIGN_OR_RETURN(const FileLock lock, FileLock::Take(options.file + ".lock"));
  absl::StatusOr<std::vector<ApiKey>> keys = Read(options.file);
  if (absl::IsNotFound(keys.status())) keys = std::vector<ApiKey>();
  SLUICE_RETURN_IF_ERROR(keys.status());
  ApiKey key = options.key;
  const std::string secret = IssueKey(absl::Now(), &key);
  keys->push_back(key);
  SLUICE_RETURN_IF_ERROR(WriteApiKeys(options.file, *keys));
  *console.err << "key " << key.id << " of " << key.owner << (key.admin ? ", for the admin port" : "")
               << "; it is shown this once" << std::endl;
  *console.out << secret << std::endl;
  return kExitOk;
}

std::string Limit(int64_t limit) { return limit == 0 ? "-" : absl::StrCat(limit); }

absl::StatusOr<int> List(const Options& options, const Console& console) {
  SLUICE_ASSIGN_OR_RETURN(const std::vector<ApiKey> keys, Read(options.file));
  *console.out << absl::StrFormat("%-12s  %-20s  %-5s  %12s  %10s  %9s  %s\n", "id", "owner", "admin",
                                  "requests/min", "tokens/min", "in flight", "created");
  for (const ApiKey& key : keys) {
    *console.out << absl::StrFormat("%-12s  %-20s  %-5s  %12s  %10s  %9s  %s\n", key.id, key.owner,
                                    key.admin ? "yes" : "no", Limit(key.limits.requests_per_minute),
                                    Limit(key.limits.tokens_per_minute), Limit(key.limits.in_flight),
                                    key.created);
  }
  *console.out << std::flush;
  return kExitOk;
}

absl::StatusOr<int> Revoke(const Options& options, const Console& console) {
  SLUICE_ASSIGN_OR_RETURN(const FileLock lock, FileLock::Take(options.file + ".lock"));
  SLUICE_ASSIGN_OR_RETURN(std::vector<ApiKey> keys, Read(options.file));
  if (std::erase_if(keys, [&](const ApiKey& key) { return key.id == options.id; }) == 0) {
    return absl::NotFoundError(
        absl::StrCat("no key ", options.id, " in ", options.file, "; sluice keys list"));
  }
  SLUICE_RETURN_IF_ERROR(WriteApiKeys(options.file, keys));
  *console.err << "key " << options.id << " is revoked: routers know within seconds" << std::endl;
  return kExitOk;
}

}  // namespace

Command AddKeys(CLI::App* parent) {
  CLI::App* app =
      parent->add_subcommand("keys", "who may ask a router (its --api-keys): create, list, revoke");
  app->require_subcommand(1);
  auto options = std::make_shared<Options>();
  auto run = std::make_shared<Run>(nullptr);
  auto add = [&](const char* name, const char* help, Run body) {
    CLI::App* command = app->add_subcommand(name, help);
    command->callback([run, body] { *run = body; });
    AddFlag(command, "--file", options->file, "the file of keys", "SLUICE_API_KEYS", "Keys");
    return command;
  };
  CLI::App* create = add("create", "a new key; prints it, once", Create);
  create
      ->add_option("--owner", options->key.owner,
                   "whose sessions and cache it uses; an owner may have many keys")
      ->required();
  create->add_flag("--admin", options->key.admin, "opens the admin port instead of the public one");
  const auto limit = [&](const char* flag, int64_t& value, const char* help) {
    create->add_option(flag, value, help)
        ->check(CLI::Range(int64_t{0}, int64_t{1} << 40))
        ->capture_default_str();
  };
  limit("--requests-per-minute", options->key.limits.requests_per_minute, "0: no limit");
  limit("--tokens-per-minute", options->key.limits.tokens_per_minute, "of prompts and replies; 0: no limit");
  limit("--in-flight", options->key.limits.in_flight, "requests at a time; 0: no limit");
  add("list", "all keys, without their secrets", List);
  add("revoke", "a key that opens nothing any more", Revoke)->add_option("id", options->id)->required();
  app->footer(
      "Example:\n"
      "  sluice keys create --owner alice --requests-per-minute 60\n"
      "  sluice-router ... --api-keys sluice-keys.json");
  return {app, [options, run](const Console& console) { return (*run)(*options, console); }};
}

}  // namespace sluice
