#include "text/pre_tokenizer.h"

#include <algorithm>

#include "base/error.h"
#include "text/unicode.h"

namespace keel {

const std::string_view kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

namespace {

using Slice = Pieces::Slice;

struct Span {
  std::size_t begin, end;
  bool matched;
};

// One piece's spans, matched or not, which together cover it; turned into slices as `behavior` says.
void add_slices(std::vector<Span>& spans, SplitBehavior behavior, std::vector<Slice>& slices) {
  const std::size_t first = slices.size();
  bool previous = false;
  switch (behavior) {
    case SplitBehavior::isolated:
      for (const Span& span : spans) slices.push_back({span.begin, span.end});
      break;
    case SplitBehavior::removed:
      for (const Span& span : spans)
        if (!span.matched) slices.push_back({span.begin, span.end});
      break;
    case SplitBehavior::contiguous:
      for (const Span& span : spans) {
        if (slices.size() > first && span.matched == previous) {
          slices.back().end = span.end;
        } else {
          slices.push_back({span.begin, span.end});
        }
        previous = span.matched;
      }
      break;
    case SplitBehavior::merged_with_previous:
      for (const Span& span : spans) {
        if (span.matched && !previous && slices.size() > first) {
          slices.back().end = span.end;
        } else {
          slices.push_back({span.begin, span.end});
        }
        previous = span.matched;
      }
      break;
    case SplitBehavior::merged_with_next:
      for (auto span = spans.rbegin(); span != spans.rend(); ++span) {
        if (span->matched && !previous && slices.size() > first) {
          slices.back().begin = span->begin;
        } else {
          slices.push_back({span->begin, span->end});
        }
        previous = span->matched;
      }
      std::reverse(slices.begin() + static_cast<std::ptrdiff_t>(first), slices.end());
      break;
  }
  slices.erase(std::remove_if(slices.begin() + static_cast<std::ptrdiff_t>(first),
                              slices.end(),
                              [](Slice s) { return s.begin == s.end; }),
               slices.end());
}

// find(piece, visit) calls visit(begin, end) for each match inside a piece.
template <class Find>
void split(Pieces& pieces, SplitBehavior behavior, bool invert, const Find& find) {
  std::vector<Slice> slices;
  slices.reserve(pieces.slices.size());
  std::vector<Span> spans;
  for (const Slice piece : pieces.slices) {
    spans.clear();
    std::size_t done = piece.begin;
    find(std::string_view(pieces.text).substr(piece.begin, piece.end - piece.begin),
         [&](std::size_t begin, std::size_t end) {
           if (done != piece.begin + begin) spans.push_back({done, piece.begin + begin, invert});
           done = piece.begin + end;
           spans.push_back({piece.begin + begin, done, !invert});
         });
    if (done != piece.end) spans.push_back({done, piece.end, invert});
    add_slices(spans, behavior, slices);
  }
  pieces.slices = std::move(slices);
}

template <class Property>
auto characters_with(const Property& property) {
  return [property](std::string_view piece, const auto& visit) {
    for (std::size_t at = 0; at < piece.size();) {
      const CodePoint point = decode_utf8(piece, at);
      const std::size_t next = at + static_cast<std::size_t>(point.length);
      if (property(point.value)) visit(at, next);
      at = next;
    }
  };
}

auto occurrences_of(const std::string& pattern) {
  return [&pattern](std::string_view piece, const auto& visit) {
    for (std::size_t at = 0; (at = piece.find(pattern, at)) != piece.npos; at += pattern.size())
      visit(at, at + pattern.size());
  };
}

// Rebuilds the text piece by piece; edit(piece, is_first, result) appends what the piece becomes.
template <class Edit>
void rewrite(Pieces& pieces, const Edit& edit) {
  std::string text;
  text.reserve(pieces.text.size() + pieces.slices.size());
  for (std::size_t i = 0; i < pieces.slices.size(); ++i) {
    Slice& slice = pieces.slices[i];
    const std::size_t begin = text.size();
    edit(std::string_view(pieces.text).substr(slice.begin, slice.end - slice.begin), i == 0, text);
    slice = {begin, text.size()};
  }
  pieces.text = std::move(text);
}

struct Apply {
  Pieces& pieces;
  bool at_start;

  void operator()(const Split& step) const {
    if (const auto* plain = std::get_if<std::string>(&step.pattern)) {
      split(pieces, step.behavior, step.invert, occurrences_of(*plain));
    } else {
      split(pieces, step.behavior, step.invert, [&](std::string_view piece, const auto& visit) {
        std::get<Regex>(step.pattern).for_each_match(piece, visit);
      });
    }
  }
  void operator()(const SplitDigits& step) const {
    split(pieces,
          step.individual ? SplitBehavior::isolated : SplitBehavior::contiguous,
          false,
          characters_with(is_number));
  }
  void operator()(const SplitPunctuation& step) const {
    split(pieces, step.behavior, false, characters_with([](char32_t c) {
            // ASCII symbols such as $ and ^ count as punctuation too.
            return is_punctuation(c) || (c > ' ' && c < 0x7f && !is_letter(c) && !is_number(c));
          }));
  }
  void operator()(SplitWhiteSpace) const {
    split(pieces, SplitBehavior::removed, false, characters_with(is_white_space));
  }
  void operator()(PrefixSpace) const {
    rewrite(pieces, [](std::string_view piece, bool, std::string& text) {
      if (!piece.starts_with(' ')) text += ' ';
      text += piece;
    });
  }
  void operator()(const Metaspace& step) const {
    rewrite(pieces, [&](std::string_view piece, bool is_first, std::string& text) {
      const std::size_t begin = text.size();
      const bool may_prepend =
          step.prepending == Metaspace::Prepending::always ||
          (step.prepending == Metaspace::Prepending::first && is_first && at_start);
      if (may_prepend && !piece.starts_with(' ') && !piece.starts_with(step.replacement))
        text += step.replacement;
      for (char c : piece) {
        if (c == ' ') {
          text += step.replacement;
        } else {
          text += c;
        }
      }
      check(text.size() > begin, "a piece is never empty");
    });
    if (step.split)
      split(pieces, SplitBehavior::merged_with_next, false, occurrences_of(step.replacement));
  }
};

}  // namespace

Pieces PreTokenizer::apply(std::string_view text, bool at_start) const {
  Pieces pieces{std::string(text), {}};
  if (!text.empty()) pieces.slices.push_back({0, text.size()});
  for (const PreTokenizerStep& step : steps) std::visit(Apply{pieces, at_start}, step);
  return pieces;
}

}  // namespace keel
