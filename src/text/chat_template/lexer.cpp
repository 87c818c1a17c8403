#include "text/chat_template/lexer.h"

#include <algorithm>
#include <charconv>

#include "base/error.h"
#include "text/chat_template/unicode.h"

namespace keel::jinja {
namespace {

// Line ends become "\n", and one at the very end goes, as Jinja does.
std::string normalized(std::string_view source) {
  std::string out;
  out.reserve(source.size());
  for (std::size_t i = 0; i < source.size(); ++i) {
    if (source[i] == '\r') {
      out += '\n';
      if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
    } else {
      out += source[i];
    }
  }
  if (!out.empty() && out.back() == '\n') out.pop_back();
  return out;
}

bool is_ascii_digit(char c) { return c >= '0' && c <= '9'; }

class Lexer {
 public:
  explicit Lexer(std::string source) : source_(std::move(source)) {}

  std::vector<Token> run() {
    while (position_ < source_.size()) outside();
    push(TokenKind::end, "");
    return std::move(tokens_);
  }

 private:
  [[noreturn]] void refuse(std::string_view what) { fail("chat template, line {}: {}", line_, what); }
  std::string_view rest() const { return std::string_view(source_).substr(position_); }
  bool at(std::string_view wanted) const { return rest().starts_with(wanted); }
  char peek(std::size_t offset = 0) const {
    return position_ + offset < source_.size() ? source_[position_ + offset] : '\0';
  }

  void push(TokenKind kind, std::string text) { tokens_.push_back({kind, std::move(text), line_}); }

  // Moves on by `bytes`, counting lines.
  void advance(std::size_t bytes) {
    const auto passed = rest().substr(0, bytes);
    line_ += static_cast<int>(std::count(passed.begin(), passed.end(), '\n'));
    position_ += bytes;
    if (!passed.empty()) at_line_start_ = passed.back() == '\n';
  }

  void skip_space() { advance(rest().size() - strip(rest(), std::nullopt, true, false).size()); }

  // Text up to the next tag, then the tag.
  void outside() {
    std::size_t start = position_;
    do {
      start = source_.find('{', start);
      if (start == std::string::npos) break;
      const char next = start + 1 < source_.size() ? source_[start + 1] : '\0';
      if (next == '%' || next == '{' || next == '#') break;
      ++start;
    } while (true);
    if (start == std::string::npos) {
      push(TokenKind::data, std::string(rest()));
      advance(rest().size());
      return;
    }
    const char kind = source_[start + 1];
    const char sign = start + 2 < source_.size() ? source_[start + 2] : '\0';
    push_text(std::string_view(source_).substr(position_, start - position_), sign, kind == '{');
    advance(start - position_);
    const std::size_t opening_bytes = sign == '-' || sign == '+' ? 3 : 2;
    if (kind == '#') {
      advance(opening_bytes);
      comment();
    } else if (kind == '{') {
      push(TokenKind::print_begin, "{{");
      advance(opening_bytes);
      inside(true);
    } else if (!raw_block(opening_bytes)) {
      push(TokenKind::block_begin, "{%");
      advance(opening_bytes);
      inside(false);
    }
  }

  void push_text(std::string_view text, char sign, bool before_print) {
    if (sign == '-') {
      text = strip(text, std::nullopt, false, true);
    } else if (sign != '+' && !before_print) {
      // A tag alone at the start of its line takes the indentation with it.
      const std::size_t line_start = text.rfind('\n') + 1;
      if ((line_start > 0 || at_line_start_) && strip(text.substr(line_start), std::nullopt, true, false).empty()) {
        text = text.substr(0, line_start);
      }
    }
    if (!text.empty()) push(TokenKind::data, std::string(text));
  }

  // What follows the "%}" or "#}" at the position, whose sign has been read.
  void close(char sign, bool trims_newline) {
    advance(2);
    if (sign == '-') {
      skip_space();
    } else if (sign != '+' && trims_newline && peek() == '\n') {
      advance(1);
    }
  }

  void comment() {
    const std::size_t end = source_.find("#}", position_);
    if (end == std::string::npos) refuse("a comment has no end");
    const char sign = end > position_ ? source_[end - 1] : '\0';
    advance(end - position_);
    close(sign, true);
  }

  // {% raw %} … {% endraw %}: text as it stands. False when the tag is another.
  bool raw_block(std::size_t opening_bytes) {
    std::string_view tag = strip(rest().substr(opening_bytes), std::nullopt, true, false);
    if (!tag.starts_with("raw")) return false;
    tag = strip(tag.substr(3), std::nullopt, true, false);
    const bool strips = tag.starts_with("-%}");
    if (!strips && !tag.starts_with("%}")) return false;
    advance(rest().size() - tag.size() + (strips ? 3 : 2));
    if (strips) skip_space();
    for (std::size_t end = source_.find("{%", position_); end != std::string::npos; end = source_.find("{%", end + 2)) {
      const std::string_view after = std::string_view(source_).substr(end + 2);
      const char sign = after.empty() ? '\0' : after.front();
      std::string_view body = after.substr(sign == '-' || sign == '+' ? 1 : 0);
      body = strip(body, std::nullopt, true, false);
      if (!body.starts_with("endraw")) continue;
      body = strip(body.substr(6), std::nullopt, true, false);
      const char end_sign = body.empty() ? '\0' : body.front();
      if (end_sign == '-' || end_sign == '+') body.remove_prefix(1);
      if (!body.starts_with("%}")) continue;
      push_text(std::string_view(source_).substr(position_, end - position_), sign, false);
      advance(rest().size() - body.size());
      close(end_sign, true);
      return true;
    }
    refuse("{% raw %} has no {% endraw %}");
  }

  // Tokens of a tag up to its end.
  void inside(bool is_print) {
    const std::string_view end = is_print ? "}}" : "%}";
    std::string open;  // brackets still to close, innermost last
    while (true) {
      if (position_ >= source_.size()) refuse("a tag has no end");
      if (open.empty()) {
        const bool has_sign = peek() == '-' || (peek() == '+' && !is_print);
        if (rest().substr(has_sign ? 1 : 0).starts_with(end)) {
          const char sign = has_sign ? peek() : '\0';
          push(is_print ? TokenKind::print_end : TokenKind::block_end, std::string(end));
          advance(has_sign ? 1 : 0);
          close(sign, !is_print);
          return;
        }
      }
      const std::size_t before = position_;
      skip_space();
      if (position_ == before && !number() && !name() && !string()) symbol(open);
    }
  }

  // Digits with single underscores between them, from `start`; returns the end.
  std::size_t digits(std::size_t start) const {
    std::size_t end = start;
    while (end < source_.size() &&
           (is_ascii_digit(source_[end]) ||
            (source_[end] == '_' && end > start && end + 1 < source_.size() && is_ascii_digit(source_[end + 1])))) {
      ++end;
    }
    return end;
  }

  bool number() {
    if (!is_ascii_digit(peek())) return false;
    const std::size_t whole_end = digits(position_);
    std::size_t end = whole_end;
    const bool after_dot = position_ > 0 && source_[position_ - 1] == '.';
    if (!after_dot) {
      if (end + 1 < source_.size() && source_[end] == '.' && is_ascii_digit(source_[end + 1])) end = digits(end + 1);
      if (end < source_.size() && (source_[end] == 'e' || source_[end] == 'E')) {
        std::size_t exponent = end + 1;
        if (exponent < source_.size() && (source_[exponent] == '+' || source_[exponent] == '-')) ++exponent;
        if (digits(exponent) > exponent) end = digits(exponent);
      }
    }
    std::string text = source_.substr(position_, end - position_);
    if (end == whole_end && text[0] == '0' && text.find_first_not_of("0_") != std::string::npos) {
      refuse("a number with leading zeros");
    }
    if (end == whole_end && end < source_.size() && text == "0" && std::string_view("bBoOxX").find(source_[end]) != std::string_view::npos) {
      refuse("binary, octal and hexadecimal numbers are not supported");
    }
    std::erase(text, '_');
    Token token{end == whole_end ? TokenKind::integer : TokenKind::real, text, line_};
    const auto result = end == whole_end ? std::from_chars(text.data(), text.data() + text.size(), token.integer)
                                         : std::from_chars(text.data(), text.data() + text.size(), token.real);
    if (result.ec != std::errc()) refuse("number " + text + " does not fit 64 bits");
    tokens_.push_back(std::move(token));
    advance(end - position_);
    return true;
  }

  bool name() {
    std::string_view after = rest();
    while (!after.empty()) {
      const std::size_t bytes = code_point_bytes(after);
      const char32_t c = code_points(after.substr(0, bytes)).front();
      const bool is_start = c == '_' || is_alphabetic(c);
      if (!is_start && (after.size() == rest().size() || !is_numeric(c))) break;
      after.remove_prefix(bytes);
    }
    const std::size_t bytes = rest().size() - after.size();
    if (bytes == 0) return false;
    push(TokenKind::name, std::string(rest().substr(0, bytes)));
    advance(bytes);
    return true;
  }

  bool string() {
    const char quote = peek();
    if (quote != '\'' && quote != '"') return false;
    std::size_t end = position_ + 1;
    while (end < source_.size() && source_[end] != quote) end += source_[end] == '\\' ? 2 : 1;
    if (end >= source_.size()) refuse("a string has no end");
    push(TokenKind::string, unescaped(std::string_view(source_).substr(position_ + 1, end - position_ - 1)));
    advance(end + 1 - position_);
    return true;
  }

  std::string unescaped(std::string_view text) {
    std::string out;
    while (!text.empty()) {
      const char c = text.front();
      text.remove_prefix(1);
      if (c != '\\') {
        out += c;
        continue;
      }
      constexpr std::string_view kLetters = "\\'\"abfnrtv", kMeanings = "\\'\"\a\b\f\n\r\t\v";
      const char letter = text.front();
      text.remove_prefix(1);
      if (const auto i = kLetters.find(letter); i != std::string_view::npos) {
        out += kMeanings[i];
      } else if (letter == '\n') {
        continue;
      } else if (letter == 'x' || letter == 'u' || letter == 'U') {
        append_escape(out, text, letter == 'x' ? 2 : letter == 'u' ? 4 : 8, 16);
      } else if (letter >= '0' && letter <= '7') {
        std::size_t digits = 1;
        while (digits < 3 && digits - 1 < text.size() && text[digits - 1] >= '0' && text[digits - 1] <= '7') ++digits;
        std::string_view octal(text.data() - 1, digits);
        append_escape(out, octal, digits, 8);
        text.remove_prefix(digits - 1);
      } else if (letter == 'N') {
        refuse("\\N{…} in a string is not supported");
      } else {
        out += '\\';
        out += letter;
      }
    }
    return out;
  }

  void append_escape(std::string& out, std::string_view& text, std::size_t digits, int base) {
    std::uint32_t c = 0;
    const char* end = text.data() + std::min(digits, text.size());
    const auto result = std::from_chars(text.data(), end, c, base);
    if (result.ptr != text.data() + digits || c > 0x10FFFF || (c >= 0xD800 && c < 0xE000)) {
      refuse("a string has an escape that is no character");
    }
    append_code_point(out, c);
    text.remove_prefix(digits);
  }

  void symbol(std::string& open) {
    for (std::string_view two : {"==", "!=", "<=", ">=", "//", "**"}) {
      if (at(two)) {
        push(TokenKind::symbol, std::string(two));
        advance(2);
        return;
      }
    }
    const char c = peek();
    if (std::string_view("+-/*%~[](){}<>=.:|,;").find(c) == std::string_view::npos) {
      refuse(fmt::format("unexpected character {}", repr_of(rest())));
    }
    if (c == '(') open += ')';
    if (c == '[') open += ']';
    if (c == '{') open += '}';
    if (c == ')' || c == ']' || c == '}') {
      if (open.empty() || open.back() != c) refuse(fmt::format("unexpected '{}'", c));
      open.pop_back();
    }
    push(TokenKind::symbol, std::string(1, c));
    advance(1);
  }

  static std::string repr_of(std::string_view text) {
    return "'" + std::string(text.substr(0, code_point_bytes(text))) + "'";
  }

  std::string source_;
  std::size_t position_ = 0;
  int line_ = 1;
  bool at_line_start_ = true;
  std::vector<Token> tokens_;
};

}  // namespace

std::vector<Token> tokenize(std::string_view source) {
  if (!is_valid_utf8(source)) fail("chat template: not valid UTF-8");
  return Lexer(normalized(source)).run();
}

}  // namespace keel::jinja
