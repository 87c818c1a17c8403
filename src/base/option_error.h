// What the caller chose and can change: an option's value. Programs answer with the exit code of a wrong command line.
#pragma once

#include "base/error.h"

namespace keel {

class OptionError : public Error {
 public:
  using Error::Error;
};

// Throws OptionError with a formatted message: the option, what was wanted, what was found.
template <class... Args>
[[noreturn]] void refuse_option(fmt::format_string<Args...> format, Args&&... args) {
  throw OptionError(fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace keel
