#include "client/load_prompts.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <nlohmann/json.hpp>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "client/input_text.h"
#include "common/base/status.h"

namespace sluice {
namespace {

using nlohmann::json;

constexpr const char* kWords[] = {
    "the",   "of",    "and",   "to",    "in",     "is",      "that",  "was",  "on",     "it",      "you",
    "with",  "his",   "as",    "her",   "not",    "had",     "me",    "at",   "we",     "him",     "my",
    "so",    "have",  "all",   "she",   "which",  "do",      "but",   "said", "by",     "up",      "or",
    "this",  "from",  "are",   "man",   "who",    "were",    "no",    "one",  "they",   "would",   "there",
    "them",  "out",   "been",  "only",  "what",   "will",    "go",    "when", "any",    "if",      "your",
    "could", "their", "am",    "more",  "about",  "very",    "know",  "say",  "some",   "can",     "into",
    "again", "than",  "other", "after", "hand",   "too",     "like",  "time", "did",    "see",     "now",
    "has",   "us",    "upon",  "great", "over",   "should",  "good",  "part", "before", "off",     "day",
    "such",  "then",  "down",  "every", "how",    "much",    "old",   "must", "under",  "nothing", "made",
    "own",   "back",  "never", "two",   "come",   "thought", "way",   "even", "long",   "might",   "may",
    "our",   "being", "first", "where", "seem",   "think",   "let",   "well", "here",   "without", "went",
    "head",  "room",  "those", "came",  "turn",   "its",     "away",  "door", "eyes",   "though",  "face",
    "same",  "house", "make",  "most",  "last",   "put",     "find",  "life", "still",  "take",    "want",
    "words", "get",   "tell",  "call",  "looked", "another", "night", "mind", "people", "moment",  "look",
    "once",  "heart", "took",  "place", "left",   "return",  "right", "found"};

// InvalidArgument names what is wrong with the value at `name`.
absl::StatusOr<std::string> TextOf(const json& value, absl::string_view name) {
  if (!value.is_string()) return absl::InvalidArgumentError(absl::StrCat(name, ": want a string"));
  std::string text = value.get<std::string>();
  SLUICE_RETURN_IF_ERROR(CheckText(name, text));
  return text;
}

absl::StatusOr<v1::Messages> MessagesOf(const json& list) {
  if (!list.is_array() || list.empty()) {
    return absl::InvalidArgumentError("messages: want a list of {\"role\", \"content\"}");
  }
  v1::Messages messages;
  for (const json& each : list) {
    if (!each.is_object()) return absl::InvalidArgumentError("messages: want {\"role\", \"content\"}");
    v1::Message* message = messages.add_messages();
    SLUICE_ASSIGN_OR_RETURN(*message->mutable_role(), TextOf(each.value("role", json()), "role"));
    SLUICE_ASSIGN_OR_RETURN(*message->mutable_content(), TextOf(each.value("content", json()), "content"));
  }
  return messages;
}

absl::StatusOr<Dialogue> DialogueOf(const std::string& line) {
  const json object = json::parse(line, nullptr, false);
  if (!object.is_object()) return absl::InvalidArgumentError("want a JSON object");
  Dialogue dialogue;
  if (object.contains("prompt") + object.contains("messages") + object.contains("turns") != 1) {
    return absl::InvalidArgumentError("want one of \"prompt\", \"messages\" and \"turns\"");
  }
  if (object.contains("prompt")) {
    SLUICE_ASSIGN_OR_RETURN(std::string text, TextOf(object["prompt"], "prompt"));
    dialogue.turns.push_back(UserMessage(std::move(text)));
  } else if (object.contains("messages")) {
    SLUICE_ASSIGN_OR_RETURN(v1::Messages messages, MessagesOf(object["messages"]));
    dialogue.turns.push_back(std::move(messages));
  } else {
    const json& turns = object["turns"];
    if (!turns.is_array() || turns.empty())
      return absl::InvalidArgumentError("turns: want a list of strings");
    for (const json& turn : turns) {
      SLUICE_ASSIGN_OR_RETURN(std::string text, TextOf(turn, "turns"));
      dialogue.turns.push_back(UserMessage(std::move(text)));
    }
  }
  if (object.contains("output_tokens")) {
    const json& tokens = object["output_tokens"];
    if (!tokens.is_number_integer() || tokens.get<int64_t>() < 1 || tokens.get<int64_t>() > (1 << 24)) {
      return absl::InvalidArgumentError("output_tokens: want a number from 1 to 2^24");
    }
    dialogue.output_tokens = tokens.get<int>();
  }
  return dialogue;
}

}  // namespace

v1::Messages UserMessage(std::string text) {
  v1::Messages messages;
  v1::Message* message = messages.add_messages();
  message->set_role("user");
  message->set_content(std::move(text));
  return messages;
}

std::string RandomWords(int words, std::seed_seq* seed) {
  std::mt19937_64 random(*seed);
  std::string text;
  for (int i = 0; i < words; ++i) {
    absl::StrAppend(&text, i == 0 ? "" : " ", kWords[random() % std::size(kWords)]);
  }
  return text;
}

int TokenFit::WordsFor(int tokens) const {
  return static_cast<int>(std::max(1L, std::lround((tokens - overhead) / per_word)));
}

absl::StatusOr<TokenFit> FitTokens(int few_words, int few_tokens, int many_words, int many_tokens) {
  if (many_tokens <= few_tokens) {
    return absl::InternalError(absl::StrCat("the router counts ", few_tokens, " tokens for ", few_words,
                                            " words and ", many_tokens, " for ", many_words,
                                            "; give the prompts with --prompts"));
  }
  TokenFit fit;
  fit.per_word = static_cast<double>(many_tokens - few_tokens) / (many_words - few_words);
  fit.overhead = few_tokens - fit.per_word * few_words;
  return fit;
}

Dialogue SyntheticDialogue(const SyntheticShape& shape, const TokenFit& fit, uint64_t run, uint64_t index) {
  const auto words = [&](int count, uint64_t what, uint64_t turn) {
    std::seed_seq seed{shape.seed & 0xFFFFFFFF, shape.seed >> 32, run, what, index, turn};
    return RandomWords(count, &seed);
  };
  Dialogue dialogue;
  for (int turn = 0; turn < shape.turns; ++turn) {
    int count = fit.WordsFor(turn == 0 ? shape.prompt_tokens : shape.turn_tokens);
    std::string text;
    if (turn == 0 && shape.shared_prefix_tokens > 0 && count > 1) {
      const int shared = std::min(fit.WordsFor(shape.shared_prefix_tokens), count - 1);
      std::seed_seq seed{shape.seed & 0xFFFFFFFF, shape.seed >> 32, run};
      text = absl::StrCat(RandomWords(shared, &seed), " ");
      count -= shared;
    }
    dialogue.turns.push_back(UserMessage(absl::StrCat(text, words(count, 1, turn))));
  }
  return dialogue;
}

absl::StatusOr<std::vector<Dialogue>> ReadDialogues(const std::string& path) {
  SLUICE_ASSIGN_OR_RETURN(std::string text, ReadTextFile("--prompts", path));
  std::vector<Dialogue> dialogues;
  int number = 0;
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    ++number;
    if (absl::StripAsciiWhitespace(line).empty()) continue;
    absl::StatusOr<Dialogue> dialogue = DialogueOf(std::string(line));
    if (!dialogue.ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat("--prompts ", path, ": line ", number, ": ", dialogue.status().message()));
    }
    dialogues.push_back(*std::move(dialogue));
  }
  if (dialogues.empty())
    return absl::InvalidArgumentError(absl::StrCat("--prompts ", path, ": no prompt in it"));
  return dialogues;
}

}  // namespace sluice
