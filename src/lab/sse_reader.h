// The client's side of server-sent events: bytes as they come in, the data of whole events out.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace keel {

class SseReader {
 public:
  // The data of the events that `bytes` completes. Comments and fields other than data are skipped.
  std::vector<std::string> push(std::string_view bytes) {
    std::vector<std::string> events;
    line_.append(bytes);
    std::size_t start = 0;
    for (std::size_t end; (end = line_.find('\n', start)) != std::string::npos; start = end + 1) {
      std::string_view line = std::string_view(line_).substr(start, end - start);
      if (line.ends_with('\r')) line.remove_suffix(1);
      if (line.empty()) {
        if (has_data_) events.push_back(std::move(data_));
        data_.clear();
        has_data_ = false;
      } else if (line.starts_with("data:")) {
        line.remove_prefix(line.starts_with("data: ") ? 6 : 5);
        if (has_data_) data_ += '\n';
        data_ += line;
        has_data_ = true;
      }
    }
    line_.erase(0, start);
    return events;
  }

 private:
  std::string line_;  // received, without its end yet
  std::string data_;
  bool has_data_ = false;
};

}  // namespace keel
