#include "base/json.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <set>
#include <utility>
#include <vector>

namespace keel {
namespace {

class Checker : public nlohmann::json_sax<nlohmann::json> {
 public:
  explicit Checker(const JsonLimits& limits) : limits_(limits) {}

  std::optional<std::string> problem;

  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(number_integer_t) override { return true; }
  bool number_unsigned(number_unsigned_t) override { return true; }
  bool number_float(number_float_t, const string_t&) override { return true; }
  bool string(string_t&) override { return true; }
  bool binary(binary_t&) override { return true; }
  bool start_object(std::size_t) override { return open(); }
  bool end_object() override { return close(); }
  bool start_array(std::size_t) override { return open(); }
  bool end_array() override { return close(); }

  bool key(string_t& key) override {
    Container& object = open_.back();
    if (++object.keys > limits_.keys) return stop(fmt::format("a JSON object with more than {} keys", limits_.keys));
    if (!limits_.allow_repeated_keys && !object.seen.insert(key).second) {
      return stop(fmt::format("the key {:?} appears twice in a JSON object", shortened(key)));
    }
    return true;
  }

  bool parse_error(std::size_t, const std::string&, const nlohmann::detail::exception& error) override {
    std::string what = error.what();  // "[json.exception.parse_error.101] parse error at line 1, column 5: …"
    if (const auto end = what.find("] "); end != std::string::npos) what.erase(0, end + 2);
    return stop("malformed JSON: " + shortened(std::move(what)));
  }

 private:
  struct Container {
    std::size_t keys = 0;
    std::set<std::string> seen;
  };

  bool open() {
    if (open_.size() >= limits_.depth) return stop(fmt::format("JSON nested deeper than {} levels", limits_.depth));
    open_.emplace_back();
    return true;
  }
  bool close() {
    open_.pop_back();
    return true;
  }
  bool stop(std::string why) {
    problem = std::move(why);
    return false;
  }

  const JsonLimits& limits_;
  std::vector<Container> open_;
};

}  // namespace

std::optional<std::string> json_problem(std::string_view text, const JsonLimits& limits) {
  Checker checker(limits);
  nlohmann::json::sax_parse(text, &checker);
  return std::move(checker.problem);
}

std::string shortened(std::string text, std::size_t most_bytes) {
  if (text.size() > most_bytes) {
    std::size_t end = most_bytes;
    while (end > 0 && (text[end] & 0xC0) == 0x80) --end;  // between characters
    text.resize(end);
    text += "…";
  }
  return text;
}

}  // namespace keel
