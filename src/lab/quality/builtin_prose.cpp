#include "lab/quality/builtin_prose.h"

// The assembler takes the file as it is: a literal of that size would be another copy to keep.
asm(".section .rodata\n"
    "keel_builtin_prose:\n"
    ".incbin \"" KEEL_PROSE_FILE "\"\n"
    "keel_builtin_prose_end:\n"
    ".previous\n");

extern "C" const char keel_builtin_prose[], keel_builtin_prose_end[];

namespace keel {

std::string_view builtin_prose() {
  return {keel_builtin_prose, static_cast<std::size_t>(keel_builtin_prose_end - keel_builtin_prose)};
}

}  // namespace keel
