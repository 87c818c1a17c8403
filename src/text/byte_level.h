// GPT-2's way to write any byte as a printable character, so that a vocabulary of strings can hold bytes.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace keel {

// The characters that stand for the bytes of `bytes`.
std::string bytes_to_characters(std::string_view bytes);
// The bytes that the characters stand for; nullopt where one of them stands for none.
std::optional<std::string> characters_to_bytes(std::string_view characters);

}  // namespace keel
