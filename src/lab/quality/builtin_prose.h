// Prose for when no text is given: "Botchan (Master Darling)" by Kin-nosuke Natsume in Yasotaro Morri's translation (1919), public
// domain; the text that PyPI's sentencepiece 0.2.3 carries for its tests (test/botchan.txt), without notes, its lines joined to paragraphs.
#pragma once

#include <string_view>

namespace keel {

std::string_view builtin_prose();  // some 248 kB

}  // namespace keel
