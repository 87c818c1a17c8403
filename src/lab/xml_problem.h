// For tests of reports: why a document is not well-formed XML, as far as ours use it (no CDATA, no processing instructions).
#pragma once

#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace keel {

class XmlReader {
 public:
  explicit XmlReader(std::string_view text) : text_(text) {}

  std::optional<std::string> problem() {
    if (take("<!DOCTYPE html>\n")) {}
    std::vector<std::string> open;
    bool seen = false;
    while (at_ < text_.size()) {
      if (!take("<")) {
        if (const auto wrong = character()) return wrong;
        if (open.empty() && text_[at_ - 1] != '\n') return "text outside of the root at " + here();
        continue;
      }
      if (take("/")) {
        const std::string name = word();
        if (open.empty() || open.back() != name || !take(">")) return "</" + name + "> closes nothing at " + here();
        open.pop_back();
        continue;
      }
      const std::string name = word();
      if (name.empty()) return "a < without a name at " + here();
      if (open.empty() && seen) return "a second root " + name;
      seen = true;
      std::set<std::string> attributes;
      while (take(" ")) {
        const std::string attribute = word();
        if (attribute.empty()) continue;
        if (!attributes.insert(attribute).second) return attribute + " twice at " + here();
        if (!take("=\"")) return attribute + " without a value at " + here();
        while (at_ < text_.size() && text_[at_] != '"') {
          if (text_[at_] == '<') return "< in an attribute at " + here();
          if (const auto wrong = character()) return wrong;
        }
        ++at_;
      }
      if (take("/>")) continue;
      if (!take(">")) return "<" + name + " does not end at " + here();
      open.push_back(name);
    }
    if (!open.empty()) return open.back() + " is never closed";
    return seen ? std::nullopt : std::optional<std::string>("no root");
  }

 private:
  bool take(std::string_view wanted) {
    if (text_.substr(at_, wanted.size()) != wanted) return false;
    at_ += wanted.size();
    return true;
  }
  std::string word() {
    const std::size_t from = at_;
    while (at_ < text_.size() && (std::isalnum(static_cast<unsigned char>(text_[at_])) || text_[at_] == '-' || text_[at_] == ':')) ++at_;
    return std::string(text_.substr(from, at_ - from));
  }
  std::optional<std::string> character() {
    if (text_[at_] == '&') {
      for (const char* entity : {"&amp;", "&lt;", "&gt;", "&quot;"}) {
        if (take(entity)) return std::nullopt;
      }
      return "an unknown entity at " + here();
    }
    const auto byte = static_cast<unsigned char>(text_[at_++]);
    if (byte < 0x20 && byte != '\n' && byte != '\t') return "a control character at " + here();
    return std::nullopt;
  }
  std::string here() const { return std::to_string(at_) + ": " + std::string(text_.substr(at_ > 20 ? at_ - 20 : 0, 60)); }

  std::string_view text_;
  std::size_t at_ = 0;
};

inline std::optional<std::string> xml_problem(std::string_view text) { return XmlReader(text).problem(); }

inline int occurrences(std::string_view text, std::string_view what) {
  int found = 0;
  for (std::size_t at = text.find(what); at != std::string_view::npos; at = text.find(what, at + 1)) ++found;
  return found;
}

}  // namespace keel
