// A tokenizer.json of a few tokens, to change one thing in at a time.
#pragma once

#include <nlohmann/json.hpp>

#include <memory>
#include <string>

#include "text/tokenizer_json.h"

namespace keel {

// SentencePiece style: "▁" marks words, every byte has a token, "▁hello" is made by merges.
inline nlohmann::json small_json() {
  nlohmann::json vocab = {{"<unk>", 0}, {"<s>", 1}, {"</s>", 2}};
  int id = 3;
  for (int byte = 0; byte < 256; ++byte) {
    char text[7];
    std::snprintf(text, sizeof text, "<0x%02X>", byte);
    vocab[text] = id++;
  }
  for (const char* text : {"\u2581", "h", "e", "l", "o", "he", "ll", "llo", "hello", "\u2581hello"})
    vocab[text] = id++;
  const auto added = [](int number, const char* text) {
    return nlohmann::json{{"id", number},
                          {"content", text},
                          {"single_word", false},
                          {"lstrip", false},
                          {"rstrip", false},
                          {"normalized", false},
                          {"special", true}};
  };
  return {{"version", "1.0"},
          {"truncation", nullptr},
          {"padding", nullptr},
          {"added_tokens", {added(0, "<unk>"), added(1, "<s>"), added(2, "</s>")}},
          {"normalizer",
           {{"type", "Sequence"},
            {"normalizers",
             {{{"type", "Prepend"}, {"prepend", "\u2581"}},
              {{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", "\u2581"}}}}}},
          {"pre_tokenizer", nullptr},
          {"post_processor",
           {{"type", "TemplateProcessing"},
            {"single",
             {{{"SpecialToken", {{"id", "<s>"}, {"type_id", 0}}}},
              {{"Sequence", {{"id", "A"}, {"type_id", 0}}}}}},
            {"special_tokens", {{"<s>", {{"id", "<s>"}, {"ids", {1}}, {"tokens", {"<s>"}}}}}}}},
          {"decoder",
           {{"type", "Sequence"},
            {"decoders",
             {{{"type", "Replace"}, {"pattern", {{"String", "\u2581"}}}, {"content", " "}},
              {{"type", "ByteFallback"}},
              {{"type", "Fuse"}},
              {{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}}}}}},
          {"model",
           {{"type", "BPE"},
            {"unk_token", "<unk>"},
            {"fuse_unk", true},
            {"byte_fallback", true},
            {"vocab", vocab},
            {"merges", {"h e", "l l", "ll o", "he llo", "\u2581 hello"}}}}};
}

inline std::unique_ptr<Tokenizer> parse(const nlohmann::json& json,
                                        const TokenizerConfig& config = {}) {
  return parse_tokenizer_json("small.json", json.dump(), config);
}

}  // namespace keel
