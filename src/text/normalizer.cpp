#include "text/normalizer.h"

namespace keel {
namespace {

std::string strip(std::string_view text, StripSpace sides) {
  std::size_t begin = text.size(), end = 0;  // of what is not white space
  for (std::size_t at = 0; at < text.size();) {
    const CodePoint point = decode_utf8(text, at);
    const std::size_t next = at + static_cast<std::size_t>(point.length);
    if (!is_white_space(point.value)) {
      begin = std::min(begin, at);
      end = next;
    }
    at = next;
  }
  if (begin == text.size()) return {};
  if (!sides.left) begin = 0;
  if (!sides.right) end = text.size();
  return std::string(text.substr(begin, end - begin));
}

struct Applied {
  std::string_view text;

  std::string operator()(NormalForm form) const { return normalize_unicode(text, form); }
  std::string operator()(Lowercase) const { return lowercase(text); }
  std::string operator()(StripSpace sides) const {
    return sides.left || sides.right ? strip(text, sides) : std::string(text);
  }
  std::string operator()(const Prepend& step) const {
    std::string result;
    if (!text.empty()) result.append(step.text).append(text);
    return result;
  }
  std::string operator()(const Replace& step) const { return step.apply(text); }
};

}  // namespace

std::string Replace::apply(std::string_view text) const {
  std::string result;
  result.reserve(text.size());
  std::size_t done = 0;
  const auto replace = [&](std::size_t begin, std::size_t end) {
    result.append(text, done, begin - done);
    result += content;
    done = end;
  };
  if (const auto* plain = std::get_if<std::string>(&pattern)) {
    for (std::size_t at; (at = text.find(*plain, done)) != text.npos;)
      replace(at, at + plain->size());
  } else {
    std::get<Regex>(pattern).for_each_match(text, replace);
  }
  result.append(text, done);
  return result;
}

std::string Normalizer::apply(std::string_view text) const {
  std::string result(text);
  for (const NormalizerStep& step : steps) result = std::visit(Applied{result}, step);
  return result;
}

}  // namespace keel
