#include "text/regex.h"

#include <oniguruma.h>

#include <mutex>

#include "base/error.h"
#include "text/unicode.h"

namespace keel {
namespace {

const OnigUChar* bytes_of(std::string_view text) {
  return reinterpret_cast<const OnigUChar*>(text.data());
}

std::string error_text(int code, OnigErrorInfo* info = nullptr) {
  OnigUChar buffer[ONIG_MAX_ERROR_MESSAGE_LEN];
  const int length =
      info ? onig_error_code_to_str(buffer, code, info) : onig_error_code_to_str(buffer, code);
  return {reinterpret_cast<const char*>(buffer), static_cast<std::size_t>(length)};
}

}  // namespace

Regex::Regex(std::string_view pattern, const std::string& where) : pattern_(pattern) {
  static std::once_flag once;
  std::call_once(once, [] {
    OnigEncoding encodings[] = {ONIG_ENCODING_UTF8};
    onig_initialize(encodings, 1);
  });
  regex_t* compiled = nullptr;
  OnigErrorInfo info;
  const int code = onig_new(&compiled,
                            bytes_of(pattern),
                            bytes_of(pattern) + pattern.size(),
                            ONIG_OPTION_NONE,
                            ONIG_ENCODING_UTF8,
                            ONIG_SYNTAX_ONIGURUMA,
                            &info);
  if (code != ONIG_NORMAL)
    fail("{}: the regular expression {:?} does not compile: {}",
         where,
         pattern,
         error_text(code, &info));
  compiled_ = std::shared_ptr<void>(compiled, [](void* p) { onig_free(static_cast<regex_t*>(p)); });
}

void Regex::for_each_match(std::string_view text,
                           const std::function<void(std::size_t, std::size_t)>& visit) const {
  const std::unique_ptr<OnigRegion, void (*)(OnigRegion*)> region(
      onig_region_new(), [](OnigRegion* r) { onig_region_free(r, 1); });
  const auto* begin = bytes_of(text);
  const auto* end = begin + text.size();
  std::size_t from = 0;
  std::size_t last_end = std::string_view::npos;
  while (from <= text.size()) {
    const int code = onig_search(static_cast<regex_t*>(compiled_.get()),
                                 begin,
                                 end,
                                 begin + from,
                                 end,
                                 region.get(),
                                 ONIG_OPTION_NONE);
    if (code == ONIG_MISMATCH) return;
    if (code < 0) fail("the regular expression {} failed: {}", pattern_, error_text(code));
    const auto match_begin = static_cast<std::size_t>(region->beg[0]);
    const auto match_end = static_cast<std::size_t>(region->end[0]);
    // \K within a look-around can put the beginning before the place searched from, or after the end.
    if (match_begin < from || match_end < match_begin)
      fail("the regular expression {} matches backwards, which is not supported", pattern_);
    if (match_begin == match_end && match_end == last_end) {
      if (from == text.size()) return;
      from += static_cast<std::size_t>(decode_utf8(text, from).length);
      continue;
    }
    visit(match_begin, match_end);
    from = last_end = match_end;
  }
}

}  // namespace keel
