// What has been found so far, one line an item, so that a run that was killed goes on where it stopped.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <tuple>

#include "lab/line_journal.h"

namespace keel {

class Journal {
 public:
  // Goes on with the file where there is one. Throws Error where it was begun for another plan or by another build: `head` is what
  // its first line must hold.
  Journal(const std::filesystem::path& file, const nlohmann::json& head);

  // Null where it is not there yet. `arm` is empty for items that all arms share.
  const nlohmann::json* find(const std::string& gate, const std::string& arm, std::int64_t item) const;
  struct Entry {
    std::string gate, arm;
    std::int64_t item;
    nlohmann::json found;
  };
  // Whole lines, on the disk when this returns. What is there already is left as it is.
  void add(std::span<const Entry> entries);
  void add(const Entry& entry) { add({&entry, 1}); }
  std::int64_t resumed() const { return resumed_; }  // items that were there when it was opened

 private:
  using Key = std::tuple<std::string, std::string, std::int64_t>;
  LineJournal lines_;
  std::map<Key, nlohmann::json> items_;
  std::int64_t resumed_ = 0;
};

}  // namespace keel
