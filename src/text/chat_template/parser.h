// Tokens to statements. Every construct keel does not know is refused here, by name and line.
#pragma once

#include <string_view>

#include "text/chat_template/syntax.h"

namespace keel::jinja {

Block parse(std::string_view source);

}  // namespace keel::jinja
