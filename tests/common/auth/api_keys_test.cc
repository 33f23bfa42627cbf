#include "common/auth/api_keys.h"

#include <gmock/gmock.h>
#include <sys/stat.h>

#include <fstream>
#include <set>
#include <sstream>

#include "tests/support/temp_dir.h"

namespace sluice {
namespace {

using testing::HasSubstr;
using testing::Not;

const absl::Time kNow = absl::FromUnixSeconds(1'800'000'000);

ApiKey Key(const std::string& owner) {
  ApiKey key;
  key.owner = owner;
  return key;
}

TEST(ApiKeysTest, OnlyTheKeyItselfOpens) {
  ApiKey key = Key("alice"), other = Key("alice");
  const std::string secret = IssueKey(kNow, &key), others = IssueKey(kNow, &other);
  EXPECT_NE(secret, others);
  EXPECT_EQ(IdOfKey(secret), key.id);
  EXPECT_TRUE(Opens(key, secret));
  EXPECT_FALSE(Opens(key, others));
  EXPECT_FALSE(Opens(key, ""));
  std::string changed = secret;
  changed.back() = changed.back() == '0' ? '1' : '0';
  EXPECT_EQ(IdOfKey(changed), key.id);
  EXPECT_FALSE(Opens(key, changed));
  EXPECT_EQ(IdOfKey("sk-somebody-else"), "");
  EXPECT_EQ(IdOfKey(secret + "0"), "");
}

TEST(ApiKeysTest, AKeyHas256RandomBits) {
  std::set<std::string> secrets;
  for (int i = 0; i < 100; ++i) {
    ApiKey key = Key("alice");
    const std::string secret = IssueKey(kNow, &key);
    secrets.insert(secret.substr(secret.size() - 64));
  }
  EXPECT_EQ(secrets.size(), 100);
}

TEST(ApiKeysTest, TheFileHoldsNoKeyAndComesBackWhole) {
  TempDir dir;
  const std::string path = dir.path() + "/keys.json";
  ApiKey key = Key("alice"), admin = Key("ops");
  key.limits = {60, 10000, 4};
  admin.admin = true;
  const std::string secret = IssueKey(kNow, &key);
  IssueKey(kNow, &admin);
  ASSERT_TRUE(WriteApiKeys(path, {key, admin}).ok());
  std::ifstream in(path);
  std::stringstream text;
  text << in.rdbuf();
  EXPECT_THAT(text.str(), Not(HasSubstr(secret.substr(secret.size() - 64))));
  EXPECT_THAT(text.str(), HasSubstr("alice"));
  struct stat found {};
  ASSERT_EQ(stat(path.c_str(), &found), 0);
  EXPECT_EQ(found.st_mode & 0777, 0600);
  absl::StatusOr<std::vector<ApiKey>> keys = ReadApiKeys(path);
  ASSERT_TRUE(keys.ok()) << keys.status();
  EXPECT_EQ(*keys, (std::vector<ApiKey>{key, admin}));
  EXPECT_EQ((*keys)[0].created, "2027-01-15T08:00:00Z");
}

TEST(ApiKeysTest, ADamagedFileIsRefusedByItsPlace) {
  TempDir dir;
  const std::string path = dir.path() + "/keys.json";
  const auto refused = [&](const std::string& text) {
    std::ofstream(path) << text;
    return std::string(ReadApiKeys(path).status().message());
  };
  EXPECT_EQ(ReadApiKeys(dir.path() + "/none").status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(refused("{\"keys\": ["), HasSubstr("not a file of keys"));
  EXPECT_THAT(refused("[]"), HasSubstr("not a file of keys"));
  EXPECT_THAT(refused(R"({"keys":[{"id":"x","owner":"a","salt":"","sha256":""}]})"),
              HasSubstr("keys[0]: id"));
  ApiKey key = Key("alice");
  IssueKey(kNow, &key);
  ASSERT_TRUE(WriteApiKeys(path, {key, key}).ok());
  EXPECT_THAT(std::string(ReadApiKeys(path).status().message()), HasSubstr("keys[1]: id: there twice"));
  key.owner = "a b";
  ASSERT_TRUE(WriteApiKeys(path, {key}).ok());
  EXPECT_THAT(std::string(ReadApiKeys(path).status().message()), HasSubstr("keys[0]: owner"));
}

TEST(ApiKeysTest, OwnersHavePlainNames) {
  for (const char* good : {"a", "alice@example.org", "team-7_x.y"})
    EXPECT_TRUE(CheckOwner(good).ok()) << good;
  for (const std::string& bad : {std::string(), std::string(65, 'a'), std::string("a b"),
                                 std::string("a\0b", 3), std::string("a/b")}) {
    EXPECT_FALSE(CheckOwner(bad).ok()) << bad;
  }
}

}  // namespace
}  // namespace sluice
