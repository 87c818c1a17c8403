// A file of JSON lines that a killed program goes on with: appended to, never rewritten, by one writer at a time.
//
// Every line is an object whose last key is its chain: SHA-256 in hex over the chain of the line before (of the first line:
// nothing) and this line as it is without the chain. A figure that somebody edits is so noticed when the file is read again;
// whoever computes the whole chain anew is not.
#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <vector>

namespace keel {

class LineJournal {
 public:
  // Makes the file where there is none. A last line without its end, which was being written when the program died, is cut off.
  // Throws Error, naming the file and the line, where another run writes it or a line is not what was written; the file then stays as it is.
  explicit LineJournal(std::filesystem::path path);
  ~LineJournal();
  LineJournal(const LineJournal&) = delete;
  LineJournal& operator=(const LineJournal&) = delete;

  const std::vector<std::string>& lines() const { return lines_; }  // objects without their chains; what was there and what came since
  // Objects that are not empty, each on one line. On the disk when this returns; where it throws the journal is as it was.
  void append(std::span<const std::string> objects);

 private:
  static std::string chained(const std::string& object, std::string& chain);  // the line, and the chain goes on
  void read();

  std::filesystem::path path_;
  int file_;
  std::vector<std::string> lines_;
  std::string chain_;  // of the last line
};

}  // namespace keel
