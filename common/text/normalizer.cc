#include "common/text/normalizer.h"

#include <utf8proc.h>

#include <cstdlib>

namespace sluice {
namespace {

std::string UnicodeForm(absl::string_view text, NormalizerStep::Kind kind) {
  int options = UTF8PROC_STABLE;
  options |=
      kind == NormalizerStep::kNfc || kind == NormalizerStep::kNfkc ? UTF8PROC_COMPOSE : UTF8PROC_DECOMPOSE;
  if (kind == NormalizerStep::kNfkc || kind == NormalizerStep::kNfkd) options |= UTF8PROC_COMPAT;
  utf8proc_uint8_t* out = nullptr;
  utf8proc_ssize_t n = utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()), text.size(), &out,
                                    static_cast<utf8proc_option_t>(options));
  if (n < 0) return std::string(text);  // only invalid UTF-8 or no memory, and the text is valid
  std::string result(reinterpret_cast<char*>(out), n);
  std::free(out);
  return result;
}

// ASCII characters never combine with what stands before them, so the text between two of them is normalised
// alone. That keeps the marks exact: a run that changes and holds both kinds of bytes counts as marked.
MarkedText ApplyUnicodeForm(const MarkedText& in, NormalizerStep::Kind kind) {
  const std::string& text = in.text();
  auto ascii = [&](size_t i) { return static_cast<unsigned char>(text[i]) < 0x80; };
  MarkedText out;
  size_t done = 0;
  for (size_t i = 0; i < text.size();) {
    if (ascii(i)) {
      ++i;
      continue;
    }
    size_t begin = i > 0 ? i - 1 : 0;  // the character before may be the base of a combining mark
    while (i < text.size() && !ascii(i)) ++i;
    out.Append(in, done, begin);
    absl::string_view run = absl::string_view(text).substr(begin, i - begin);
    std::string form = UnicodeForm(run, kind);
    if (form == run) {
      out.Append(in, begin, i);
    } else {
      out.Append(form, in.AnyMarkedIn(begin, i));
    }
    done = i;
  }
  out.Append(in, done, text.size());
  return out;
}

MarkedText Replace(const MarkedText& in, const std::string& from, const std::string& to) {
  MarkedText out;
  size_t done = 0;
  for (size_t hit; (hit = in.text().find(from, done)) != std::string::npos; done = hit + from.size()) {
    out.Append(in, done, hit);
    out.Append(to, in.AnyMarkedIn(hit, hit + from.size()));
  }
  out.Append(in, done, in.size());
  return out;
}

}  // namespace

MarkedText Normalizer::Apply(MarkedText text) const {
  for (const NormalizerStep& step : steps_) {
    if (step.kind == NormalizerStep::kPrepend) {
      if (text.size() == 0) continue;
      MarkedText longer(step.to);
      longer.Append(text);
      text = std::move(longer);
    } else if (step.kind == NormalizerStep::kReplace) {
      text = Replace(text, step.from, step.to);
    } else {
      text = ApplyUnicodeForm(text, step.kind);
    }
  }
  return text;
}

}  // namespace sluice
