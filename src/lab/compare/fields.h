// The keys of a JSON object that somebody wrote by hand: each asked for by name and type, and none left over.
#pragma once

#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/option_error.h"

namespace keel {

class Fields {
 public:
  using Json = nlohmann::ordered_json;

  Fields(const Json& json, std::string where) : json_(json), where_(std::move(where)) {
    if (!json.is_object()) refuse_option("{}: wanted an object, found {}", where_, shortened(json.dump(), 60));
  }

  bool has(const std::string& key) const { return json_.contains(key); }
  std::string where(const std::string& key) const { return where_ + ": " + key; }

  const Json& at(const std::string& key) {
    asked_.insert(key);
    if (!json_.contains(key)) refuse_option("{} is missing", where(key));
    return json_[key];
  }
  std::string text(const std::string& key) {
    const Json& value = at(key);
    if (!value.is_string()) refuse_option("{}: wanted text, found {}", where(key), shortened(value.dump(), 60));
    return value;
  }
  std::string text(const std::string& key, const std::string& otherwise) { return has(key) ? text(key) : otherwise; }
  std::vector<std::string> texts(const std::string& key) {
    std::vector<std::string> list;
    for (const Json& item : array(key)) {
      if (!item.is_string()) refuse_option("{}: wanted texts, found {}", where(key), shortened(item.dump(), 60));
      list.push_back(item);
    }
    return list;
  }
  const Json& array(const std::string& key) {
    const Json& value = at(key);
    if (!value.is_array()) refuse_option("{}: wanted a list, found {}", where(key), shortened(value.dump(), 60));
    return value;
  }
  std::int64_t integer(const std::string& key, std::int64_t least, std::int64_t most) {
    const Json& value = at(key);
    const bool fits = value.is_number_unsigned() ? value.get<std::uint64_t>() <= static_cast<std::uint64_t>(INT64_MAX) : value.is_number_integer();
    if (!fits || value.get<std::int64_t>() < least || value.get<std::int64_t>() > most) {
      refuse_option("{}: wanted a whole number between {} and {}, found {}", where(key), least, most, shortened(value.dump(), 60));
    }
    return value;
  }
  std::int64_t integer(const std::string& key, std::int64_t least, std::int64_t most, std::int64_t otherwise) {
    return has(key) ? integer(key, least, most) : otherwise;
  }
  double number(const std::string& key, double least, double most, double otherwise) {
    if (!has(key)) return otherwise;
    const Json& value = at(key);
    if (!value.is_number() || !(value.get<double>() >= least && value.get<double>() <= most)) {
      refuse_option("{}: wanted a number between {} and {}, found {}", where(key), least, most, shortened(value.dump(), 60));
    }
    return value;
  }
  // Whatever was not asked for is a mistake in writing.
  void end() const {
    for (const auto& [key, value] : json_.items()) {
      if (!asked_.contains(key)) refuse_option("{}: there is no such key", where(key));
    }
  }

 private:
  const Json& json_;
  std::string where_;
  std::set<std::string> asked_;
};

}  // namespace keel
