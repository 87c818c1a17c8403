#include "server/openai/logprobs.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace keel {
namespace {

// JSON has no infinity: what cannot happen is written as vLLM writes it.
Json number(float logprob) {
  if (std::isnan(logprob)) return nullptr;
  return std::max(static_cast<double>(logprob), -9999.0);
}

std::int64_t characters(std::string_view text) {
  return std::ranges::count_if(text, [](char c) { return (c & 0xC0) != 0x80; });
}

Json chat_token(const Tokenizer& tokenizer, const TokenLogprob& entry) {
  Json bytes = Json::array();
  for (const char byte : tokenizer.token_bytes(entry.token)) bytes.push_back(static_cast<unsigned char>(byte));
  return {{"token", token_text(tokenizer, entry.token)}, {"logprob", number(entry.logprob)}, {"bytes", bytes}};
}

}  // namespace

bool is_utf8(std::string_view bytes) {
  std::size_t i = 0;
  while (i < bytes.size()) {
    const auto lead = static_cast<unsigned char>(bytes[i]);
    const std::size_t length = lead < 0x80 ? 1 : lead < 0xC2 ? 0 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : lead < 0xF5 ? 4 : 0;
    if (length == 0 || i + length > bytes.size()) return false;
    for (std::size_t j = 1; j < length; ++j) {
      if ((bytes[i + j] & 0xC0) != 0x80) return false;
    }
    const auto second = length > 2 ? static_cast<unsigned char>(bytes[i + 1]) : 0;
    // Overlong forms, surrogates, past U+10FFFF.
    if ((lead == 0xE0 && second < 0xA0) || (lead == 0xED && second > 0x9F) || (lead == 0xF0 && second < 0x90) ||
        (lead == 0xF4 && second > 0x8F)) {
      return false;
    }
    i += length;
  }
  return true;
}

std::string token_text(const Tokenizer& tokenizer, TokenId token) {
  std::string bytes = tokenizer.token_bytes(token);
  if (is_utf8(bytes)) return bytes;
  std::string text = "bytes:";
  for (const char byte : bytes) text += fmt::format("\\x{:02x}", static_cast<unsigned char>(byte));
  return text;
}

Json completion_logprobs(const Tokenizer& tokenizer, std::span<const TokenReport> reports, std::int64_t& offset) {
  Json tokens = Json::array(), chosen = Json::array(), top = Json::array(), offsets = Json::array();
  for (const TokenReport& report : reports) {
    std::string text = token_text(tokenizer, report.chosen.token);
    offsets.push_back(offset);
    offset += characters(text);
    chosen.push_back(number(report.chosen.logprob));
    if (std::isnan(report.chosen.logprob)) {  // a prompt's first token follows nothing
      top.push_back(nullptr);
    } else {
      Json entries = Json::object();
      for (const TokenLogprob& entry : report.top) {
        entries.emplace(token_text(tokenizer, entry.token), number(entry.logprob));
      }
      entries.emplace(text, number(report.chosen.logprob));
      top.push_back(std::move(entries));
    }
    tokens.push_back(std::move(text));
  }
  return {{"tokens", std::move(tokens)},
          {"token_logprobs", std::move(chosen)},
          {"top_logprobs", std::move(top)},
          {"text_offset", std::move(offsets)}};
}

Json chat_logprobs(const Tokenizer& tokenizer, std::span<const TokenReport> reports) {
  Json content = Json::array();
  for (const TokenReport& report : reports) {
    Json token = chat_token(tokenizer, report.chosen);
    Json top = Json::array();
    for (const TokenLogprob& entry : report.top) top.push_back(chat_token(tokenizer, entry));
    token["top_logprobs"] = std::move(top);
    content.push_back(std::move(token));
  }
  return {{"content", std::move(content)}};
}

Json prompt_logprobs(const Tokenizer& tokenizer, std::span<const TokenReport> reports) {
  Json positions = Json::array();
  for (const TokenReport& report : reports) {
    if (std::isnan(report.chosen.logprob)) {
      positions.push_back(nullptr);
      continue;
    }
    Json entries = Json::object();
    const auto add = [&](const TokenLogprob& entry) {
      entries.emplace(std::to_string(entry.token), Json{{"logprob", number(entry.logprob)},
                                                        {"rank", entry.rank},
                                                        {"decoded_token", token_text(tokenizer, entry.token)}});
    };
    add(report.chosen);
    for (const TokenLogprob& entry : report.top) add(entry);
    positions.push_back(std::move(entries));
  }
  return positions;
}

}  // namespace keel
