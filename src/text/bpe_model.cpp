#include "text/bpe_model.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <queue>

#include "base/error.h"
#include "base/random.h"
#include "text/byte_level.h"
#include "text/unicode.h"

namespace keel {
namespace {

constexpr std::string_view kSpaceMark = "\xe2\x96\x81";  // ▁, U+2581

// Where a word begins after `from`: at a "▁" that follows something else. npos where no further one does.
std::size_t next_word(std::string_view text, std::size_t from) {
  for (std::size_t at = from; (at = text.find(kSpaceMark, at)) != text.npos;
       at += kSpaceMark.size())
    if (at > from && !text.substr(0, at).ends_with(kSpaceMark)) return at;
  return text.npos;
}

}  // namespace

MergeTable::MergeTable(std::size_t expected)
    : slots_(std::bit_ceil(std::max<std::size_t>(expected, 8) * 2)) {}

std::size_t MergeTable::slot_of(std::uint64_t pair) const {
  std::size_t slot = mix64(pair) & (slots_.size() - 1);
  while (slots_[slot].pair != pair && slots_[slot].pair != kFree)
    slot = (slot + 1) & (slots_.size() - 1);
  return slot;
}

void MergeTable::add(TokenId left, TokenId right, Merge merge) {
  const std::uint64_t pair = std::uint64_t(std::uint32_t(left)) << 32 | std::uint32_t(right);
  Slot& slot = slots_[slot_of(pair)];
  if (slot.pair == kFree) slot = {pair, merge};
}

const MergeTable::Merge* MergeTable::find(TokenId left, TokenId right) const {
  const std::uint64_t pair = std::uint64_t(std::uint32_t(left)) << 32 | std::uint32_t(right);
  const Slot& slot = slots_[slot_of(pair)];
  return slot.pair == pair ? &slot.merge : nullptr;
}

WordCache::WordCache(std::size_t text_bytes) {
  if (text_bytes >= 256)
    slots_.resize(std::min<std::size_t>(std::bit_ceil(text_bytes / 16), 16384));
}

std::size_t WordCache::slot_of(std::string_view word) const {
  return std::hash<std::string_view>()(word) & (slots_.size() - 1);
}

std::optional<std::span<const TokenId>> WordCache::find(std::string_view word) const {
  if (slots_.empty() || word.size() > kWordBytes) return std::nullopt;
  const Slot& slot = slots_[slot_of(word)];
  if (std::string_view(slot.word, slot.word_bytes) != word) return std::nullopt;
  return std::span(slot.ids, slot.tokens);
}

void WordCache::remember(std::string_view word, std::span<const TokenId> tokens) {
  if (slots_.empty() || word.empty() || word.size() > kWordBytes || tokens.size() > kTokens) return;
  Slot& slot = slots_[slot_of(word)];
  slot.word_bytes = static_cast<std::uint8_t>(word.size());
  slot.tokens = static_cast<std::uint8_t>(tokens.size());
  std::copy(word.begin(), word.end(), slot.word);
  std::copy(tokens.begin(), tokens.end(), slot.ids);
}

struct BpeModel::Candidate {
  double order;  // smaller is merged earlier: a rank, or a score negated
  std::int32_t left;
  TokenId result;

  bool operator>(const Candidate& other) const {
    return order != other.order ? order > other.order : left > other.left;
  }
};

BpeModel::BpeModel(const Vocabulary& vocabulary, MergeTable merges, Options options)
    : vocabulary_(&vocabulary), merges_(std::move(merges)), options_(options) {
  prepare();
}

BpeModel::BpeModel(const Vocabulary& vocabulary, std::vector<float> scores, Options options)
    : vocabulary_(&vocabulary), scores_(std::move(scores)), options_(options) {
  check(scores_.size() == static_cast<std::size_t>(vocabulary.size()), "a score for every token");
  prepare();
}

void BpeModel::prepare() {
  bool all_bytes = true;
  for (int byte = 0; byte < 256; ++byte) {
    const std::string text = options_.byte_level
                                 ? bytes_to_characters(std::string(1, static_cast<char>(byte)))
                                 : fmt::format("<0x{:02X}>", byte);
    byte_tokens_[static_cast<std::size_t>(byte)] = vocabulary_->find(text).value_or(-1);
    all_bytes = all_bytes && byte_tokens_[static_cast<std::size_t>(byte)] >= 0;
  }
  // Fused unknown characters could reach across a cut.
  cut_before_words_ = !options_.byte_level && !options_.ignore_merges &&
                      (!options_.fuse_unknown || (options_.byte_fallback && all_bytes));
  for (TokenId id = 0; id < vocabulary_->size() && cut_before_words_; ++id)
    if (token_for(vocabulary_->text(id)) == id)
      cut_before_words_ = next_word(vocabulary_->text(id), 0) == std::string_view::npos;
}

void BpeModel::encode(std::string_view piece,
                      WordCache& cache,
                      std::vector<TokenId>& tokens) const {
  check(piece.size() < std::size_t{1} << 31, "a piece is under 2 GiB");
  if (!cut_before_words_) return encode_word(piece, cache, tokens);
  for (std::size_t at = 0; at < piece.size();) {
    const std::size_t end = std::min(next_word(piece, at), piece.size());
    encode_word(piece.substr(at, end - at), cache, tokens);
    at = end;
  }
}

void BpeModel::encode_word(std::string_view word,
                           WordCache& cache,
                           std::vector<TokenId>& tokens) const {
  if (const auto known = cache.find(word)) {
    tokens.insert(tokens.end(), known->begin(), known->end());
    return;
  }
  const std::size_t before = tokens.size();
  merge_word(word, tokens);
  cache.remember(word, std::span(tokens).subspan(before));
}

void BpeModel::merge_word(std::string_view word, std::vector<TokenId>& tokens) const {
  if (options_.ignore_merges) {
    const auto whole =
        options_.byte_level ? vocabulary_->find(bytes_to_characters(word)) : token_for(word);
    if (whole) {
      tokens.push_back(*whole);
      return;
    }
  }
  std::vector<Symbol> symbols = symbols_of(word);
  constexpr std::size_t kFew = 32;  // a heap costs more than it saves below
  if (symbols.size() <= kFew) {
    merge_few(word, symbols);
  } else {
    merge_many(word, symbols);
  }
  for (const Symbol& symbol : symbols)
    if (symbol.begin != symbol.end) append(word, symbol, tokens);
}

// A token that text may produce.
std::optional<TokenId> BpeModel::token_for(std::string_view text) const {
  const auto id = vocabulary_->find(text);
  if (id && !scores_.empty() && std::isnan(scores_[static_cast<std::size_t>(*id)]))
    return std::nullopt;
  return id;
}

std::vector<BpeModel::Symbol> BpeModel::symbols_of(std::string_view word) const {
  std::vector<Symbol> symbols;
  symbols.reserve(word.size());
  const auto add = [&](TokenId id, std::size_t begin, std::size_t end) {
    const auto index = static_cast<std::int32_t>(symbols.size());
    symbols.push_back({id,
                       static_cast<std::uint32_t>(begin),
                       static_cast<std::uint32_t>(end),
                       index - 1,
                       index + 1});
  };
  bool last_is_unknown = false;
  const auto add_unknown = [&](std::size_t begin, std::size_t end) {
    if (!options_.unknown) return;
    if (last_is_unknown && options_.fuse_unknown) {
      symbols.back().end = static_cast<std::uint32_t>(end);
    } else {
      add(*options_.unknown, begin, end);
    }
    last_is_unknown = true;
  };
  for (std::size_t at = 0; at < word.size();) {
    std::size_t end = at + 1;
    if (options_.byte_level) {
      const TokenId id = byte_tokens_[static_cast<unsigned char>(word[at])];
      if (id >= 0) {
        add(id, at, end);
        last_is_unknown = false;
      } else {
        add_unknown(at, end);
      }
      at = end;
      continue;
    }
    end = at + static_cast<std::size_t>(decode_utf8(word, at).length);
    const std::string_view character = word.substr(at, end - at);
    const auto id = token_for(character);
    if (id || !scores_.empty()) {
      add(id.value_or(-1), at, end);
      last_is_unknown = false;
    } else if (options_.byte_fallback &&
               std::all_of(character.begin(), character.end(), [&](unsigned char byte) {
                 return byte_tokens_[byte] >= 0;
               })) {
      for (std::size_t i = at; i < end; ++i)
        add(byte_tokens_[static_cast<unsigned char>(word[i])], i, i + 1);
      last_is_unknown = false;
    } else {
      add_unknown(at, end);
    }
    at = end;
  }
  if (!symbols.empty()) symbols.back().next = -1;
  return symbols;
}

std::optional<BpeModel::Candidate> BpeModel::candidate(std::string_view word,
                                                       const Symbol& l,
                                                       const Symbol& r) const {
  if (merges_) {
    const auto* merge = merges_->find(l.id, r.id);
    if (!merge) return std::nullopt;
    return Candidate{static_cast<double>(merge->rank), 0, merge->result};
  }
  const auto id = token_for(word.substr(l.begin, r.end - l.begin));
  if (!id) return std::nullopt;
  return Candidate{-static_cast<double>(scores_[static_cast<std::size_t>(*id)]), 0, *id};
}

// Keeps every pair's candidate in a row and looks through it for the best.
void BpeModel::merge_few(std::string_view word, std::vector<Symbol>& symbols) const {
  constexpr double kNever = std::numeric_limits<double>::infinity();
  if (symbols.size() < 2) return;
  std::vector<std::pair<double, TokenId>> pairs;  // pairs[i]: of symbols i and i + 1
  const auto pair_at = [&](std::size_t i) -> std::pair<double, TokenId> {
    const auto found = candidate(word, symbols[i], symbols[i + 1]);
    return found ? std::pair(found->order, found->result) : std::pair(kNever, TokenId{-1});
  };
  for (std::size_t i = 0; i + 1 < symbols.size(); ++i) pairs.push_back(pair_at(i));
  while (!pairs.empty()) {
    std::size_t best = 0;
    for (std::size_t i = 1; i < pairs.size(); ++i)
      if (pairs[i].first < pairs[best].first) best = i;
    if (pairs[best].second < 0) return;
    symbols[best].id = pairs[best].second;
    symbols[best].end = symbols[best + 1].end;
    symbols.erase(symbols.begin() + static_cast<std::ptrdiff_t>(best) + 1);
    pairs.erase(pairs.begin() + static_cast<std::ptrdiff_t>(best));
    if (best < pairs.size()) pairs[best] = pair_at(best);
    if (best > 0) pairs[best - 1] = pair_at(best - 1);
  }
}

void BpeModel::merge_many(std::string_view word, std::vector<Symbol>& symbols) const {
  std::vector<Candidate> start;
  start.reserve(symbols.size());
  const auto at = [&](std::int32_t i) -> Symbol& { return symbols[static_cast<std::size_t>(i)]; };
  const auto candidate_at = [&](std::int32_t left) -> std::optional<Candidate> {
    if (left < 0 || at(left).next < 0) return std::nullopt;
    auto found = candidate(word, at(left), at(at(left).next));
    if (found) found->left = left;
    return found;
  };
  for (std::size_t i = 0; i < symbols.size(); ++i)
    if (const auto found = candidate_at(static_cast<std::int32_t>(i))) start.push_back(*found);
  std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> queue(std::greater<>(),
                                                                               std::move(start));
  while (!queue.empty()) {
    const Candidate best = queue.top();
    queue.pop();
    Symbol& left = at(best.left);
    if (left.begin == left.end) continue;  // merged away since
    // The pair may have grown since, and then makes a longer token.
    const auto now = candidate_at(best.left);
    if (!now || now->result != best.result) continue;
    Symbol& right = at(left.next);
    left.id = best.result;
    left.end = right.end;
    left.next = right.next;
    right.begin = right.end;
    if (left.next >= 0) at(left.next).previous = best.left;
    if (const auto found = candidate_at(left.previous)) queue.push(*found);
    if (const auto found = candidate_at(best.left)) queue.push(*found);
  }
}

void BpeModel::append(std::string_view word,
                      const Symbol& symbol,
                      std::vector<TokenId>& tokens) const {
  if (symbol.id >= 0) {
    tokens.push_back(symbol.id);
    return;
  }
  const std::string_view text = word.substr(symbol.begin, symbol.end - symbol.begin);
  const bool as_bytes =
      options_.byte_fallback && std::all_of(text.begin(), text.end(), [&](unsigned char byte) {
        return byte_tokens_[byte] >= 0;
      });
  if (as_bytes) {
    for (unsigned char byte : text) tokens.push_back(byte_tokens_[byte]);
  } else if (options_.unknown) {
    tokens.push_back(*options_.unknown);
  }
}

}  // namespace keel
