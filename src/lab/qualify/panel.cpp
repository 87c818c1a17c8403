#include "lab/qualify/panel.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <functional>
#include <map>
#include <set>

#include "base/json.h"
#include "base/option_error.h"
#include "base/random.h"
#include "base/sha256.h"
#include "base/text_file.h"
#include "lab/quality/builtin_prose.h"

namespace keel {
namespace {

constexpr std::time_t kRenderTime = 1'767'225'600;  // 2026-01-01: templates that write a date always write this one
constexpr std::size_t kMostTextBytes = std::size_t{64} << 20;

const char* const kFirstNames[] = {"Anna",  "Tom",   "Mary",  "John",  "Clara", "Henry",  "Alice",  "Peter",   "Ruth", "Simon",
                                   "Laura", "Frank", "Helen", "Oscar", "Julia", "Edgar",  "Martha", "Hugo",    "Nora", "Walter",
                                   "Irene", "Felix", "Emma",  "Victor", "Grace", "Albert", "Rose",   "Leonard", "Ada",  "Arthur"};
const char* const kLastNames[] = {"Bell", "Carter", "Moor",   "Price",  "Lane", "Foster", "Hale",   "Reed", "Stone", "Marsh",
                                  "Wood", "Black",  "Fisher", "Archer", "Cook", "Mason",  "Porter", "Shaw", "Field", "Brook",
                                  "Hart", "Cross",  "Dale",   "Young",  "King", "Webb",   "Page",   "Snow", "Park",  "Cole"};
const char* const kThings[] = {"apples", "books", "coins", "eggs"};

// Numbers of one seed, in order.
class Draws {
 public:
  explicit Draws(std::uint64_t seed) : seed_(seed) {}
  std::int64_t below(std::int64_t end) { return static_cast<std::int64_t>(random_u64(seed_, count_++) % static_cast<std::uint64_t>(end)); }
  std::int64_t between(std::int64_t low, std::int64_t high) { return low + below(high - low); }

 private:
  std::uint64_t seed_, count_ = 0;
};

// How a question is put to the model.
class Asker {
 public:
  Asker(const Tokenizer& tokenizer, const ChatTemplate* chat_template) : tokenizer_(tokenizer), template_(chat_template) {}

  std::vector<TokenId> ask(const std::string& before, const std::string& message) const {
    std::string text = before;
    if (template_ == nullptr) {
      text += (before.empty() ? "" : "\n") + message + "\nAnswer:";
    } else {
      Json request{{"messages", Json::array({{{"role", "user"}, {"content", message}}})}, {"add_generation_prompt", true}};
      request["bos_token"] = tokenizer_.bos() ? tokenizer_.token_bytes(*tokenizer_.bos()) : "";
      request["eos_token"] = tokenizer_.eos() ? tokenizer_.token_bytes(*tokenizer_.eos()) : "";
      Result<std::string> rendered = template_->render(request, kRenderTime);
      if (!rendered) fail("the chat template refused a question of the panel: {}", rendered.error());
      text += *rendered;
    }
    return tokenizer_.encode(text, {.add_special = template_ == nullptr, .parse_special = true});
  }

 private:
  const Tokenizer& tokenizer_;
  const ChatTemplate* template_;
};

struct Needle {
  std::string line, key;
};

// Three pass keys in prose, one of them asked for, which lies at `depth` of the text. The prompt has at most `length` tokens of a
// context of `context`.
PanelItem needle_case(const Tokenizer& tokenizer, const Asker& asker, const std::vector<TokenId>& text, std::int64_t context, std::int64_t length, double depth,
                      bool in_message, std::uint64_t seed) {
  Draws draws(seed);
  std::set<std::string> names;
  while (names.size() < 3) names.insert(fmt::format("{} {}", kFirstNames[draws.below(30)], kLastNames[draws.below(30)]));
  std::vector<Needle> needles;
  for (const std::string& name : names) {
    std::string key = fmt::format("{}", draws.between(10'000, 100'000));
    needles.push_back({fmt::format("\nThe pass key of {} is {}.\n", name, key), key});
  }
  const auto asked = static_cast<std::size_t>(draws.below(3));
  const std::string question = fmt::format("What is the pass key of {}?", *std::next(names.begin(), static_cast<std::ptrdiff_t>(asked)));
  std::vector<std::pair<double, std::size_t>> places;
  for (std::size_t i = 0; i < needles.size(); ++i) places.emplace_back(i == asked ? depth : static_cast<double>(draws.below(1000)) / 1000, i);
  std::sort(places.begin(), places.end());
  const double start_share = static_cast<double>(draws.below(1 << 20)) / (1 << 20);

  const auto prompt_of = [&](std::int64_t body) {
    const auto room = static_cast<std::int64_t>(text.size()) - body;
    const std::span<const TokenId> prose = std::span(text).subspan(static_cast<std::size_t>(start_share * static_cast<double>(room)), static_cast<std::size_t>(body));
    std::string haystack;
    std::size_t from = 0;
    for (const auto& [place, index] : places) {
      const auto to = static_cast<std::size_t>(place * static_cast<double>(body));
      haystack += tokenizer.decode(prose.subspan(from, to - from)) + needles[index].line;
      from = to;
    }
    haystack += tokenizer.decode(prose.subspan(from));
    return in_message ? asker.ask("", haystack + "\n\n" + question) : asker.ask(haystack, question);
  };
  const auto overhead = static_cast<std::int64_t>(prompt_of(0).size());
  std::int64_t body = length - overhead;
  if (body < 16) fail("needles in {} tokens: the question alone takes {}", length, overhead);
  if (body > static_cast<std::int64_t>(text.size())) fail("needles in {} tokens: the text has {}", length, text.size());
  std::vector<TokenId> prompt = prompt_of(body);
  while (static_cast<std::int64_t>(prompt.size()) > length) {  // a cut through a word is read as more tokens
    body -= static_cast<std::int64_t>(prompt.size()) - length;
    if (body < 1) fail("needles in {} tokens: no text fits beside the question", length);
    prompt = prompt_of(body);
  }
  return {.label = fmt::format("{} tokens, depth {:.2f}", context, depth), .prompt = std::move(prompt), .wanted = needles[asked].key};
}

PanelItem sum_case(const Asker& asker, std::int64_t index, std::uint64_t seed) {
  Draws draws(seed);
  const std::string name = kFirstNames[draws.below(30)], thing = kThings[draws.below(4)];
  std::int64_t a = draws.between(2, 50), b = draws.between(2, 50), answer = 0;
  std::string question;
  switch (draws.below(4)) {
    case 0:
      question = fmt::format("{0} has {1} {2} and buys {3} more. How many {2} does {0} have now?", name, a, thing, b);
      answer = a + b;
      break;
    case 1:
      if (a < b) std::swap(a, b);
      question = fmt::format("{} has {} {} and gives away {}. How many {} are left?", name, a, thing, b, thing);
      answer = a - b;
      break;
    case 2:
      a = a % 11 + 2, b = b % 11 + 2;
      question = fmt::format("{} fills {} boxes with {} {} each. How many {} are there in all?", name, a, b, thing, thing);
      answer = a * b;
      break;
    default: {
      const std::int64_t c = std::min(draws.between(2, 50), a + b);
      question = fmt::format("{0} has {1} {2}, finds {3} more and then loses {4}. How many {2} does {0} have?", name, a, thing, b, c);
      answer = a + b - c;
    }
  }
  return {.label = fmt::format("sum {}", index + 1), .prompt = asker.ask("", question), .wanted = std::to_string(answer)};
}

constexpr std::string_view kFileMark = "####";
constexpr std::string_view kInstruction =
    "\n\nWork step by step. End with one line that has #### and then the final number, such as: #### 42";

std::vector<PanelItem> questions_of(const std::filesystem::path& file, const std::string& text, std::int64_t most, const Asker& asker) {
  std::vector<PanelItem> items;
  std::int64_t line_number = 0;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    const std::string line = text.substr(begin, end - begin);
    begin = end + 1;
    ++line_number;
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    if (most > 0 && static_cast<std::int64_t>(items.size()) == most) break;
    const auto where = [&] { return fmt::format("{}:{}", file.string(), line_number); };
    if (const auto problem = json_problem(line)) fail("{}: {}", where(), *problem);
    const nlohmann::json json = nlohmann::json::parse(line);
    const auto field = [&](const char* name) {
      if (!json.is_object() || !json.contains(name) || !json[name].is_string()) fail("{}: wanted an object with the strings question and answer", where());
      return json[name].get<std::string>();
    };
    const std::string question = field("question"), answer = field("answer");
    const std::size_t mark = answer.rfind(kFileMark);
    const auto number = plain_number(mark == std::string::npos ? answer : answer.substr(mark + kFileMark.size()));
    if (!number) fail("{}: the answer is no number, and none follows {}", where(), kFileMark);
    items.push_back({.label = fmt::format("question {}", items.size() + 1), .prompt = asker.ask("", question + std::string(kInstruction)), .wanted = *number});
  }
  if (items.empty()) fail("{}: holds no question", file.string());
  return items;
}

}  // namespace

std::optional<std::string> plain_number(std::string_view text) {
  std::string digits;
  bool point = false, any = false;
  std::size_t i = text.find_first_not_of(" \t\r\n$");
  if (i == std::string_view::npos) return std::nullopt;
  const bool negative = text[i] == '-';
  i += negative || text[i] == '+';
  if (i < text.size() && text[i] == '$') ++i;
  for (; i < text.size(); ++i) {
    const char c = text[i];
    const bool digit_follows = i + 1 < text.size() && text[i + 1] >= '0' && text[i + 1] <= '9';
    if (c >= '0' && c <= '9') {
      digits += c;
      any = true;
    } else if (c == '.' && !point && digit_follows) {
      digits += c;
      point = true;
    } else if (!(c == ',' && any && digit_follows && !point)) {
      break;
    }
  }
  if (!any) return std::nullopt;
  // What follows may be punctuation or words ("18.", "18 dollars"), not more of the number ("1/2", "10%", "3e5", "12:30").
  const auto digit_at = [&](std::size_t at) { return at < text.size() && text[at] >= '0' && text[at] <= '9'; };
  if (i < text.size() && (text[i] == '.' || text[i] == ',') && digit_at(i + 1)) return std::nullopt;
  if (i < text.size() && std::string_view("/%:").find(text[i]) != std::string_view::npos) return std::nullopt;
  if (i < text.size() && (std::isalpha(static_cast<unsigned char>(text[i])) != 0 || text[i] == '_')) return std::nullopt;
  if (point) {
    while (digits.ends_with('0')) digits.pop_back();
    if (digits.ends_with('.')) digits.pop_back();
  }
  digits.erase(0, std::min(digits.find_first_not_of('0'), digits.size()));
  if (digits.empty() || digits.front() == '.') digits.insert(0, "0");
  return negative && digits != "0" ? "-" + digits : digits;
}

bool is_right(Judge judge, std::string_view answer, std::string_view wanted, std::string_view mark, bool truncated) {
  const auto digit = [](char c) { return c >= '0' && c <= '9'; };
  if (judge == Judge::first_digits) {
    const auto begin = std::find_if(answer.begin(), answer.end(), digit);
    const auto end = std::find_if_not(begin, answer.end(), digit);
    return std::string_view(begin, end) == wanted;
  }
  const std::size_t at = answer.rfind(mark);
  if (truncated || at == std::string_view::npos) return false;
  const auto number = plain_number(answer.substr(at + mark.size()));
  return number && *number == wanted;
}

PanelOptions read_panel(const std::filesystem::path& file) {
  const std::string text = read_text_file(file);
  if (const auto problem = json_problem(text, {.allow_repeated_keys = false})) refuse_option("{}: {}", file.string(), *problem);
  const nlohmann::json json = nlohmann::json::parse(text);
  if (!json.is_object()) refuse_option("{}: wanted an object", file.string());
  PanelOptions options;
  const auto whole = [&](const nlohmann::json& value, const std::string& key, std::int64_t least, std::int64_t most) {
    if (!value.is_number_integer() || value < least || value > most) refuse_option("{}: '{}' must be a whole number from {} to {}, found {}", file.string(), key, least, most, value.dump());
    return value.get<std::int64_t>();
  };
  struct Number {
    std::int64_t* target;
    std::int64_t least, most;
  };
  const std::map<std::string, Number> numbers{{"documents", {&options.documents, 1, 100'000}},
                                              {"prompt_tokens", {&options.prompt_tokens, 1, 1 << 24}},
                                              {"targets", {&options.targets, 1, 1 << 20}},
                                              {"needle_cases", {&options.needle_cases, 1, 100'000}},
                                              {"needle_answer_tokens", {&options.needle_answer_tokens, 1, 4096}},
                                              {"questions", {&options.questions, 1, 1'000'000}},
                                              {"sums", {&options.sums, 1, 1'000'000}},
                                              {"answer_tokens", {&options.answer_tokens, 1, 1 << 20}}};
  for (const auto& [key, value] : json.items()) {
    if (const auto number = numbers.find(key); number != numbers.end()) {
      *number->second.target = whole(value, key, number->second.least, number->second.most);
    } else if (key == "seed") {
      options.seed = static_cast<std::uint64_t>(whole(value, key, 0, INT64_MAX));
    } else if (key == "haystack_in_message") {
      if (!value.is_boolean()) refuse_option("{}: '{}' must be true or false, found {}", file.string(), key, value.dump());
      options.haystack_in_message = value;
    } else if (key == "needle_lengths") {
      if (!value.is_array() || value.empty()) refuse_option("{}: '{}' must be an array of whole numbers, found {}", file.string(), key, value.dump());
      for (const auto& length : value) options.needle_lengths.push_back(whole(length, key, 64, 1 << 24));
    } else if (key == "text_file" || key == "questions_file") {
      if (!value.is_string()) refuse_option("{}: '{}' must be a path, found {}", file.string(), key, value.dump());
      const std::filesystem::path path = file.parent_path() / value.get<std::string>();
      (key == "text_file" ? options.text_file : options.questions_file) = path;
    } else {
      refuse_option("{}: '{}' is no part of a panel", file.string(), key);
    }
  }
  return options;
}

std::string Panel::digest() const {
  std::string all = text_sha256 + questions_sha256 + mark;
  const auto add = [&](std::span<const TokenId> tokens) {
    all += fmt::format("|{}:", tokens.size());
    all.append(reinterpret_cast<const char*>(tokens.data()), tokens.size_bytes());
  };
  for (const auto& document : documents) add(document);
  for (const auto* items : {&needles, &questions}) {
    for (const PanelItem& item : *items) {
      add(item.prompt);
      all += item.wanted;
    }
  }
  return hex(sha256(all));
}

namespace {
std::int64_t longest_of(const std::vector<PanelItem>& items) {
  std::size_t longest = 0;
  for (const PanelItem& item : items) longest = std::max(longest, item.prompt.size());
  return static_cast<std::int64_t>(longest);
}
}  // namespace

std::int64_t Panel::longest_needle() const { return longest_of(needles) + needle_answer_tokens; }
std::int64_t Panel::longest_question() const { return longest_of(questions) + answer_tokens; }

Panel make_panel(const PanelOptions& options, const Tokenizer& tokenizer, const ChatTemplate* chat_template, std::int64_t longest_context) {
  Panel panel;
  const std::string file_text = options.text_file.empty() ? std::string() : read_text_file(options.text_file);
  const std::string_view text = options.text_file.empty() ? builtin_prose() : std::string_view(file_text);
  if (text.size() > kMostTextBytes) fail("{}: {} bytes of text; at most {} are read", options.text_file.string(), text.size(), kMostTextBytes);
  panel.text_name = options.text_file.empty() ? "built-in prose" : options.text_file.filename().string();
  panel.text_sha256 = hex(sha256(text));
  panel.text = tokenizer.encode(text, {});
  const auto text_tokens = static_cast<std::int64_t>(panel.text.size());

  panel.targets = options.targets;
  panel.prompt_tokens = options.prompt_tokens > 0 ? options.prompt_tokens : std::min<std::int64_t>(896, longest_context - options.targets);
  const std::int64_t length = panel.prompt_tokens + panel.targets;
  if (panel.prompt_tokens < 1 || length > longest_context) {
    refuse_option("documents of {} tokens and {} targets do not fit the model's context of {}", std::max<std::int64_t>(panel.prompt_tokens, 1), panel.targets, longest_context);
  }
  if (text_tokens < options.documents * length) {
    refuse_option("{}: {} documents of {} tokens want {} tokens of text, found {}", panel.text_name, options.documents, length, options.documents * length, text_tokens);
  }
  for (std::int64_t i = 0; i < options.documents; ++i) {  // evenly over the text, none meeting another
    const std::int64_t start = options.documents == 1 ? 0 : i * (text_tokens - length) / (options.documents - 1);
    panel.documents.emplace_back(panel.text.begin() + start, panel.text.begin() + start + length);
  }

  const Asker asker(tokenizer, chat_template);
  panel.needle_answer_tokens = options.needle_answer_tokens;
  panel.needle_lengths = options.needle_lengths;
  if (panel.needle_lengths.empty()) {
    for (const std::int64_t each : {512, 1024, 2048, 4096}) {
      if (each <= longest_context) panel.needle_lengths.push_back(each);
    }
  }
  if (panel.needle_lengths.empty()) refuse_option("the model's context of {} tokens is too short for needles; give needle_lengths", longest_context);
  const auto lengths = static_cast<std::int64_t>(panel.needle_lengths.size());
  for (std::int64_t i = 0; i < options.needle_cases; ++i) {
    const std::int64_t context = panel.needle_lengths[static_cast<std::size_t>(i % lengths)];
    if (context > longest_context) refuse_option("needles in {} tokens do not fit the model's context of {}", context, longest_context);
    const std::int64_t cases = (options.needle_cases - i % lengths + lengths - 1) / lengths;  // of this length
    const double depth = (static_cast<double>(i / lengths) + 0.5) / static_cast<double>(cases);
    panel.needles.push_back(needle_case(tokenizer, asker, panel.text, context, context - options.needle_answer_tokens, depth, options.haystack_in_message,
                                        random_u64(options.seed, static_cast<std::uint64_t>(i))));
  }

  if (options.questions_file.empty()) {
    panel.questions_name = "built-in sums";
    panel.mark = "The answer is";
    panel.answer_tokens = options.answer_tokens > 0 ? options.answer_tokens : 48;
    for (std::int64_t i = 0; i < options.sums; ++i) {
      panel.questions.push_back(sum_case(asker, i, random_u64(options.seed + 1, static_cast<std::uint64_t>(i))));
    }
  } else {
    const std::string questions = read_text_file(options.questions_file);
    panel.questions_name = options.questions_file.filename().string();
    panel.questions_sha256 = hex(sha256(questions));
    panel.mark = kFileMark;
    panel.answer_tokens = options.answer_tokens > 0 ? options.answer_tokens : 512;
    panel.questions = questions_of(options.questions_file, questions, options.questions, asker);
  }
  if (panel.longest_question() > longest_context) {
    refuse_option("{}: questions of up to {} tokens and answers of up to {} do not fit the model's context of {}", panel.questions_name,
                  panel.longest_question() - panel.answer_tokens, panel.answer_tokens, longest_context);
  }
  return panel;
}

}  // namespace keel
