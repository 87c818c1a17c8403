// Byte-pair encoding of one piece of text: symbols are merged, the most preferred pair first and the leftmost of
// equals, until no pair can be. Time n log n in the piece's length.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/vocabulary.h"

namespace keel {

// Pairs of tokens that may merge, by open addressing: a look-up is one cache line.
class MergeTable {
 public:
  struct Merge {
    std::int32_t rank;
    TokenId result;
  };
  explicit MergeTable(std::size_t expected);
  void add(TokenId left, TokenId right, Merge merge);  // the first one of a pair stays
  const Merge* find(TokenId left, TokenId right) const;

 private:
  struct Slot {
    std::uint64_t pair = kFree;
    Merge merge{};
  };
  static constexpr std::uint64_t kFree = ~std::uint64_t{0};
  std::size_t slot_of(std::uint64_t pair) const;
  std::vector<Slot> slots_;  // a power of two, at most half full
};

// Short words and their tokens, remembered while one text is encoded. Bounded: a word that falls on another's slot
// replaces it.
class WordCache {
 public:
  explicit WordCache(std::size_t text_bytes);
  // nullopt: not known.
  std::optional<std::span<const TokenId>> find(std::string_view word) const;
  void remember(std::string_view word, std::span<const TokenId> tokens);

 private:
  static constexpr std::size_t kWordBytes = 30;
  static constexpr std::size_t kTokens = 8;
  struct Slot {  // 64 bytes
    std::uint8_t word_bytes = 0, tokens = 0;
    char word[kWordBytes];
    TokenId ids[kTokens];
  };
  std::size_t slot_of(std::string_view word) const;
  std::vector<Slot> slots_;  // a power of two; none for short texts
};

class BpeModel {
 public:
  struct Options {
    bool byte_level =
        false;  // a piece's bytes are its first symbols, written as GPT-2's characters
    bool byte_fallback =
        false;  // a character without a token becomes "<0x..>" tokens, where all of them exist
    bool ignore_merges = false;  // a piece that is a token needs no merges
    bool fuse_unknown = false;   // neighbouring unknown characters become one token
    std::optional<TokenId>
        unknown;  // none: an unknown character vanishes, as in the reference library
  };

  // With merges, by rank. REQUIRES: both parts and the whole of each merge are in the vocabulary.
  BpeModel(const Vocabulary& vocabulary, MergeTable merges, Options options);
  // With scores, as SentencePiece does: any two symbols merge whose joined text is a token that may be produced, the
  // highest score first. scores[id] is NaN for a token that text must not produce (control tokens).
  BpeModel(const Vocabulary& vocabulary, std::vector<float> scores, Options options);

  // Appends the piece's tokens.
  void encode(std::string_view piece, WordCache& cache, std::vector<TokenId>& tokens) const;

 private:
  struct Symbol {
    TokenId id;                // -1: no token (scores only: it may still be part of one)
    std::uint32_t begin, end;  // of the piece; equal once merged into its left neighbour
    std::int32_t previous, next;
  };
  struct Candidate;

  void prepare();
  void encode_word(std::string_view word, WordCache& cache, std::vector<TokenId>& tokens) const;
  void merge_word(std::string_view word, std::vector<TokenId>& tokens) const;
  std::vector<Symbol> symbols_of(std::string_view word) const;
  std::optional<TokenId> token_for(std::string_view text) const;
  std::optional<Candidate> candidate(std::string_view word, const Symbol& l, const Symbol& r) const;
  void merge_few(std::string_view word, std::vector<Symbol>& symbols) const;
  void merge_many(std::string_view word, std::vector<Symbol>& symbols) const;
  void append(std::string_view word, const Symbol& symbol, std::vector<TokenId>& tokens) const;

  const Vocabulary* vocabulary_;
  std::optional<MergeTable> merges_;  // or
  std::vector<float> scores_;
  Options options_;
  std::array<TokenId, 256>
      byte_tokens_;  // byte_level: of the byte's character; else of "<0x..>"; -1 where there is none
  // No token joins a "▁" to something other than "▁" before it: a text may be cut before each word's "▁".
  bool cut_before_words_ = false;
};

}  // namespace keel
