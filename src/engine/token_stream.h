// A choice's tokens on their way to text: detokenizes, and holds back text that may turn out to be a stop string.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "text/detokenizer.h"

namespace keel {

class TokenStream {
 public:
  // `tokenizer` may be null: then there is no text.
  TokenStream(const Tokenizer* tokenizer, std::vector<std::string> stops, bool keep_stop, bool with_special);

  struct Step {
    std::string text;                    // may be sent
    std::optional<std::string> stopped;  // the stop string that was completed; text ends before (or with) it
  };
  // `may_stop` false: a stop string found now is plain text (min_tokens).
  Step push(TokenId token, bool may_stop);
  std::string finish();  // the rest, when the choice ends for another reason

 private:
  std::optional<Detokenizer> detokenizer_;
  std::vector<std::string> stops_;
  bool keep_stop_;
  std::string held_;
};

}  // namespace keel
