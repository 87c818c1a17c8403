// Three kinds of failure, three means:
//   our own broken promise          -> check(): the process ends
//   the environment (file, format)  -> throw Error, naming what was wanted and what was found
//   an ordinary outcome             -> the return type (std::optional, an enum, Result<T>)
#pragma once

#ifndef __CUDACC__  // nvcc does not take fmt 9: .cu files have check() and throw Error with a ready message
#include <fmt/format.h>
#endif

#include <stdexcept>
#include <string>
#include <utility>
#include <variant>

namespace keel {

class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Memory of the host or of a device that is not to be had. In a step it ends the requests that wanted it, not the engine.
class OutOfMemory : public Error {
 public:
  using Error::Error;
};

#ifndef __CUDACC__
// Throws Error with a formatted message.
template <class... Args>
[[noreturn]] void fail(fmt::format_string<Args...> format, Args&&... args) {
  throw Error(fmt::format(format, std::forward<Args>(args)...));
}
#endif

// Ends the process when `condition` is false: a bug in keel, never bad input.
// (Builtins rather than std::source_location, which the clang that builds the fuzzers does not have.)
[[noreturn]] void check_failed(const char* what, const char* file, int line);
inline void check(bool condition,
                  const char* what,
                  const char* file = __builtin_FILE(),
                  int line = __builtin_LINE()) {
  if (!condition) [[unlikely]] check_failed(what, file, line);
}

// A value, or the message that says why there is none.
template <class T>
class Result {
 public:
  Result(T value) : state_(std::in_place_index<0>, std::move(value)) {}
  static Result failure(std::string message) { return Result(std::move(message), Failed{}); }

  bool ok() const { return state_.index() == 0; }
  explicit operator bool() const { return ok(); }
  T& value() { return std::get<0>(state_); }
  const T& value() const { return std::get<0>(state_); }
  T* operator->() { return &value(); }
  T& operator*() { return value(); }
  const std::string& error() const { return std::get<1>(state_); }

 private:
  struct Failed {};
  Result(std::string message, Failed) : state_(std::in_place_index<1>, std::move(message)) {}
  std::variant<T, std::string> state_;
};

}  // namespace keel
