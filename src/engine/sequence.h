// One choice of one request on its way through the engine.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "base/sha256.h"
#include "engine/request.h"
#include "engine/token_stream.h"
#include "kv/view.h"

namespace keel {

struct Sequence {
  RequestId request_id;
  int choice;
  std::shared_ptr<const Request> request;
  OutputSink sink;
  std::uint64_t seed;      // this choice's
  std::uint64_t arrival;   // order of submission

  std::vector<TokenId> tokens;  // prompt, then output
  std::int64_t prompt_tokens;
  std::int64_t computed = 0;    // tokens whose K and V are cached
  std::int64_t cached_prompt_tokens = 0;  // of the prompt, found in the prefix index at first admission
  std::vector<PageId> pages;    // cover at least `computed` tokens
  Digest prefix_root;                // of the cache's format and the request's salt
  std::vector<Digest> page_hashes;   // chain hash of each full page known so far
  std::int64_t published_pages = 0;
  std::optional<std::chrono::steady_clock::time_point> admitted;  // the first time
  std::vector<TokenReport> prompt_reports;
  TokenStream stream;           // token -> text, stop strings

  std::int64_t output_tokens() const { return static_cast<std::int64_t>(tokens.size()) - prompt_tokens; }
  std::int64_t uncomputed() const { return static_cast<std::int64_t>(tokens.size()) - computed; }
  bool decoding() const { return uncomputed() == 1 && output_tokens() > 0; }
};

}  // namespace keel
